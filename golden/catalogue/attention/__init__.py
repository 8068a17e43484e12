"""The golden cases of the attention operators, one module per subject."""

from . import batches, bfloat16, combinations, heads, large, masks, packed, ranges, refused, stored

MODULES = (combinations, heads, masks, batches, stored, packed, ranges, large, bfloat16, refused)
