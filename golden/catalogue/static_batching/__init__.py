"""The golden cases of KeyValueCache of static batching, one module per subject."""

from . import batches, bfloat16, combinations, large, refused, values

MODULES = (combinations, batches, values, large, bfloat16, refused)
