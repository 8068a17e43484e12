"""The golden cases of the attention operators, one module per subject."""

from . import (
    batches,
    combinations,
    heads,
    large,
    masks,
    mass,
    packed,
    refused,
    rotation,
    static_scales,
    stored,
    variants,
)

MODULES = (combinations, heads, masks, batches, stored, packed, large, mass, static_scales, variants, rotation, refused)
