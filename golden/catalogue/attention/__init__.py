"""The golden cases of the attention operators, one module per subject."""

from . import batches, combinations, extensions, heads, large, masks, packed, ranges, refused, stored

MODULES = (combinations, heads, masks, batches, stored, packed, ranges, large, extensions, refused)
