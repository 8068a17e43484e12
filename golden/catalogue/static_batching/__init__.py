"""The golden cases of KeyValueCache of static batching, one module per subject."""

from . import batches, combinations, large, refused, values

MODULES = (combinations, batches, values, large, refused)
