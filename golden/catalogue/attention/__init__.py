"""The golden cases of the attention operators, one module per subject."""

from . import batches, combinations, heads, large, masks, mass, packed, refused, stored

MODULES = (combinations, heads, masks, batches, stored, packed, large, mass, refused)
