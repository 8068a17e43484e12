"""The golden cases of the attention operators, one module per subject."""

from . import batches, combinations, heads, large, masks, mass, packed, refused, static_scales, stored

MODULES = (combinations, heads, masks, batches, stored, packed, large, mass, static_scales, refused)
