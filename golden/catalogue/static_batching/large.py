"""Many sequences, heads, positions, repeats, layers and neighbors of a group, as in dynamic batching."""

from __future__ import annotations

from collections.abc import Iterator

from oracle.static_batching import STATIC_LAYOUTS

from ..case import Case
from .case import begin

POSITIONS = "stored-positions loaded-positions"
# Name, types, rules, sequences, past and current tokens, sizes and attributes; the cache has one sequence more.
LARGE = (
    ("batch20-heads24", "f16 int8 f16", POSITIONS, (20, 2, 2), dict(num_heads=24, quant_bit=8, quant_group=2)),
    ("batch300", "f16 f16", POSITIONS, (300, 1, 1), {}),
    ("heads600", "f16 int4 f16", POSITIONS, (2, 1, 1), dict(num_heads=600, quant_bit=4, quant_group=2)),
    ("positions1100", "f16 f16", POSITIONS, (1, 500, 600), {}),
    ("repeat300", "f16 f16", "num-repeat", (2, 1, 1), dict(num_heads=2, num_repeat=300)),
    ("layers40", "f16 f16", "layer untouched-layers", (2, 1, 1), dict(num_layer=40, layer_idx=38)),
    ("group256-int4", "f16 int4 f16", "quantizing.groups", (1, 1, 1), dict(head_dim=512, quant_bit=4, quant_group=256)),
    ("group520-int8", "f32 int8 f16", "quantizing.groups", (1, 1, 1), dict(head_dim=520, quant_bit=8, quant_group=520)),
)


def cases() -> Iterator[Case]:
    """Each by turns in the layouts."""
    for number, (name, types, proves, (batch, start_pos, seqlen), given) in enumerate(LARGE):
        cache_layout = number % len(STATIC_LAYOUTS)
        about = f"{batch} sequences of {start_pos} past and {seqlen} current tokens: {name.replace('-', ', ')}."
        sizes = dict(num_heads=1, head_dim=2, max_b=batch + 1, max_s=start_pos + seqlen) | given
        case = begin(f"large-{name}", about, types, proves=proves, cache_layout=cache_layout, **sizes)
        yield case.call(batch, start_pos, seqlen)
