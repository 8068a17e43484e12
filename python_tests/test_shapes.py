"""Shape inference, as a user of the model sees it."""

from __future__ import annotations

import numpy as np
import pytest

from compare import assert_same_bits
from graph import Graph
from kvcache import DOMAIN, LAYOUT_AXES, create_session
from node import call, node_model, node_types, quiet_options
from ragged import RaggedCache
from setting import FLOAT, HALF, INT8, Setting

INDEX_SHAPES = dict(
    seqstarts=["batch_and_end"],
    kvstarts=["batch_and_end"],
    cachestarts=["batch"],
    start_pos=["batch"],
    max_seqlen=[],
    max_kvlen=[],
)


def inferred(setting: Setting, shapes: dict[str, list]) -> dict[str, list]:
    """The shapes of the outputs of a model that declares these, as its session tells them."""
    types = node_types(setting.t1, setting.t2, setting.t3)
    session = create_session(node_model(types, setting.attributes, shapes=shapes), quiet_options())
    return {output.name: output.shape for output in session.get_outputs()}


def current(*shape: object) -> dict[str, list]:
    """The declared shapes of both current tensors, beside those of the indices."""
    return INDEX_SHAPES | {"current_key": list(shape), "current_value": list(shape)}


@pytest.mark.parametrize("num_repeat", [1, 4])
def test_known_sizes_are_known(num_repeat: int) -> None:
    """Heads are H * num_repeat; the number of tokens has a name, the same in key and in value."""
    shapes = inferred(Setting(num_repeat=num_repeat), current("tokens", 3, 16))
    assert shapes["key"][1:] == [3 * num_repeat, 16]
    assert isinstance(shapes["key"][0], str) and shapes["key"][0]
    assert shapes["key"][0] != "tokens", "the outputs have all tokens, not this call's alone"
    assert shapes["value"] == shapes["key"]


def test_names_of_the_inputs_are_kept() -> None:
    """A dimension that passes through keeps the name that the user gave it."""
    shapes = inferred(Setting(), current("tokens", "heads", "head_dim"))
    assert shapes["key"][1:] == ["heads", "head_dim"]
    assert shapes["value"][1:] == ["heads", "head_dim"]


def test_repeated_heads_have_a_name_of_their_own() -> None:
    """H * num_repeat of an unknown H is not H."""
    shapes = inferred(Setting(num_repeat=2), current("tokens", "heads", "head_dim"))
    assert shapes["key"][1] != "heads" and shapes["key"][2] == "head_dim"


def test_names_of_the_outputs_are_kept() -> None:
    """What the user declares for key and value stays, beside what is inferred."""
    declared = {"key": ["past_and_present", 6, "width"], "value": ["past_and_present", "many", 16]}
    shapes = inferred(Setting(num_repeat=2), current("tokens", 3, 16) | declared)
    assert shapes["key"][0] == "past_and_present" and shapes["value"][0] == "past_and_present"
    assert shapes["key"][1] == 6


@pytest.mark.parametrize("cache_layout", range(len(LAYOUT_AXES)))
def test_the_cache_alone_tells_heads_and_their_size(cache_layout: int) -> None:
    """Where the current tensors are declared without a shape, the cache's H and Dh are those of the outputs."""
    sizes = {"MaxT": "slots", "L": 1, "2": 2, "H": 5, "Dh": "head_dim"}
    setting = Setting(num_repeat=3, cache_layout=cache_layout)
    shapes = inferred(setting, {"cache": [sizes[axis] for axis in LAYOUT_AXES[cache_layout]]})
    assert shapes["key"][1:] == [15, "head_dim"] and shapes["value"] == shapes["key"]


@pytest.mark.parametrize("cache_layout", range(len(LAYOUT_AXES)))
def test_a_declared_cache_goes_with_declared_inputs(cache_layout: int) -> None:
    """Full declarations of every input, in every layout, load and agree."""
    setting = Setting(
        HALF, INT8, FLOAT, quant_bit=8, quant_group=8, num_layer=2, num_repeat=2, cache_layout=cache_layout
    )
    sizes = {"MaxT": "slots", "L": 2, "2": 2, "H": 3, "Dh": 16}
    cache = [sizes[axis] for axis in LAYOUT_AXES[cache_layout]]
    shapes = inferred(setting, current("tokens", 3, 16) | {"cache": cache, "scale": [*cache[:4], 2]})
    assert shapes["key"][1:] == [6, 16]


def test_inference_reaches_the_nodes_that_follow() -> None:
    """A Transpose of the key has the key's inferred shape, transposed."""
    types = node_types(FLOAT, FLOAT)
    shapes = current("tokens", 3, 16)
    graph = Graph()
    inputs = [graph.input(name, element_type, shapes.get(name)) for name, element_type in types.items()]
    key, value = graph.nodes("KeyValueCache", 2, *inputs, domain=DOMAIN, num_repeat=2)
    graph.output("transposed", graph.node("Transpose", key, perm=[1, 2, 0]), FLOAT)
    graph.output("value", value, FLOAT)
    session = create_session(graph.serialize(), quiet_options())
    assert session.get_outputs()[0].shape[:2] == [6, 16]


@pytest.mark.parametrize("shapes", [{}, current("tokens", 2, 16)], ids=["open ranks", "declared"])
def test_what_is_declared_does_not_change_what_is_computed(shapes: dict[str, list]) -> None:
    """A model without any declared shape runs as one with shapes does."""
    random = np.random.default_rng(16)
    ragged = RaggedCache(random, [3, 4])
    inputs = Setting().current(random, 5) | ragged.step(random, [0, 1], [3, 2])
    inputs |= {name: inputs[name].reshape(()) for name in ("max_seqlen", "max_kvlen")}
    memory = Setting().memory(random, ragged.max_t)
    session = create_session(node_model(node_types(FLOAT, FLOAT), {}, shapes=shapes), quiet_options())
    key, _ = call(session, inputs | memory.arrays)
    assert_same_bits("key", key, inputs["current_key"])
