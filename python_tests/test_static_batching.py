"""KeyValueCache of static batching through ONNX Runtime: shapes, and what is written. The kit has its answers.

Domains `opmx` and `pmx`, in which the operator has other inputs than that of dynamic batching.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from kvcache_ops import step_indices
from onnx import TensorProto
from onnx.compose import add_prefix

from kvcache import create_session
from node import (
    STATIC_DOMAINS,
    node_model,
    node_types,
    quiet_options,
    run_node,
    session_of,
)
from setting import FLOAT

pytestmark = pytest.mark.runtime

# Of a float32 node.
NODE_TYPES = dict(current_key=FLOAT, current_value=FLOAT, start_pos=TensorProto.INT64, cache=FLOAT)


@pytest.mark.parametrize("domain", STATIC_DOMAINS)
def test_shapes_are_inferred(domain: str) -> None:
    """Names of dimensions pass through, heads are repeated, and the length of the outputs has a name of its own."""
    shapes = dict(current_key=["batch", "tokens", 2, 8], cache=["max_b", 1, 2, "max_s", 2, 8])
    session = create_session(node_model(NODE_TYPES, dict(num_repeat=4), domain=domain, shapes=shapes), quiet_options())
    for output in session.get_outputs():
        batch, length, *rest = output.shape
        assert (batch, rest) == ("batch", [8, 8]) and length not in ("tokens", "max_s")


def test_both_operators_are_in_one_graph() -> None:
    """One name in four domains: each node is what its domain says."""
    both = onnx.load_from_string(node_model(NODE_TYPES, {}, domain="opmx"))
    dynamic = add_prefix(onnx.load_from_string(node_model(node_types(FLOAT, FLOAT), {})), "dynamic/")
    for field in ("node", "input", "output"):
        getattr(both.graph, field).extend(getattr(dynamic.graph, field))
    both.opset_import.append(dynamic.opset_import[1])

    current = np.ones((1, 1, 2, 8), np.float32)
    inputs = dict(
        current_key=current, current_value=-current, start_pos=np.array([1]), cache=np.zeros((1, 1, 2, 4, 2, 8), "f")
    )
    of_dynamic = dict(current_key=current[0], current_value=-current[0], cache=np.zeros((4, 1, 2, 2, 8), "f"))
    of_dynamic |= step_indices([1], [2], cachestarts=[1])._asdict()
    inputs |= {f"dynamic/{name}": array for name, array in of_dynamic.items()}
    key, _, dynamic_key, _ = run_node(session_of(both.SerializeToString()), inputs)
    assert (key.shape, dynamic_key.shape) == ((1, 2, 2, 8), (3, 2, 8))
    assert inputs["cache"][0, 0, 0, 1].all() and inputs["dynamic/cache"][3, 0, 0].all()
