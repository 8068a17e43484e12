"""Shape inference, as a user of the model sees it."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from kvcache import LAYOUT_AXES, create_session
from node import STATIC_DOMAINS, STATIC_INPUTS, node_model, quiet_options, types_for
from setting import FLOAT, HALF, INT8, Setting

pytestmark = pytest.mark.runtime

INDEX_SHAPES = dict(seqstarts=["batch_and_end"], kvstarts=["batch_and_end"], cachestarts=["batch"], start_pos=["batch"])
INDEX_SHAPES |= dict(max_seqlen=[], max_kvlen=[])


def inferred(setting: Setting, shapes: dict[str, list]) -> dict[str, list]:
    """The shapes of the outputs of a model that declares these, as its session tells them."""
    return shapes_of(node_model(setting.types(), setting.attributes, shapes=shapes))


def shapes_of(model: bytes) -> dict[str, list]:
    """Those of a model's outputs."""
    return {output.name: output.shape for output in create_session(model, quiet_options()).get_outputs()}


def current(*shape: object) -> dict[str, list]:
    """The declared shapes of both current tensors, beside those of the indices."""
    return INDEX_SHAPES | {"current_key": list(shape), "current_value": list(shape)}


@pytest.mark.parametrize("num_repeat", [1, 4])
def test_known_sizes_are_known(num_repeat: int) -> None:
    """Heads are H * num_repeat; the number of tokens has a name of its own, the same in key and in value."""
    shapes = inferred(Setting(num_repeat=num_repeat), current("tokens", 3, 16))
    assert shapes["key"][1:] == [3 * num_repeat, 16] and shapes["value"] == shapes["key"]
    assert isinstance(shapes["key"][0], str) and shapes["key"][0] not in ("", "tokens")
    heads, head_dim = inferred(Setting(num_repeat=num_repeat), current("tokens", "heads", "head_dim"))["key"][1:]
    assert (heads == "heads") == (num_repeat == 1) and head_dim == "head_dim", "names pass through"


@pytest.mark.parametrize("cache_layout", range(len(LAYOUT_AXES)))
def test_the_cache_tells_heads_and_their_size(cache_layout: int) -> None:
    """Alone, where the current tensors are declared without a shape; full declarations of every input agree."""
    sizes = {"MaxT": "slots", "L": 1, "2": 2, "H": 5, "Dh": "head_dim"}
    setting = Setting(num_repeat=3, cache_layout=cache_layout)
    shapes = inferred(setting, {"cache": [sizes[axis] for axis in LAYOUT_AXES[cache_layout]]})
    assert shapes["key"][1:] == [15, "head_dim"] and shapes["value"] == shapes["key"]
    setting = Setting(HALF, INT8, FLOAT, quant_bit=8, num_repeat=2, cache_layout=cache_layout)
    sizes |= {"H": 3, "Dh": 16}
    cache = [sizes[axis] for axis in LAYOUT_AXES[cache_layout]]
    shapes = inferred(setting, current("tokens", 3, 16) | {"cache": cache, "scale": [*cache[:4], 2]})
    assert shapes["key"][1:] == [6, 16]


@pytest.mark.parametrize("domain", STATIC_DOMAINS)
def test_static_batching(domain: str) -> None:
    """Names of dimensions pass through, heads are repeated, and the length of the outputs has a name of its own."""
    shapes = dict(current_key=["batch", "tokens", 2, 8], cache=["max_b", 1, 2, "max_s", 2, 8])
    types = {name: TensorProto.INT64 if name == "start_pos" else FLOAT for name in STATIC_INPUTS[:4]}
    for batch, length, *rest in shapes_of(node_model(types, dict(num_repeat=4), domain=domain, shapes=shapes)).values():
        assert (batch, rest) == ("batch", [8, 8]) and length not in ("tokens", "max_s")


@pytest.mark.parametrize("operator", ["MultiHeadAttention", "MultiHeadCacheAttention"])
def test_attention(operator: str) -> None:
    """Heads and their size are the attributes'; the number of tokens has the name that `query` gives it."""
    attributes = dict(num_heads=4, head_dim=8, num_kv_heads=2)
    for query in (["tokens", "heads", "head_dim"], [5, 4, 8], None):
        model = node_model(types_for(operator), attributes, operator=operator, shapes={"query": query})
        [[tokens, *rest]] = shapes_of(model).values()
        assert rest == [4, 8] and (tokens == query[0] if query else isinstance(tokens, str) and tokens)
