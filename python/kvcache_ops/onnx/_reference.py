"""The operators for `onnx.reference.ReferenceEvaluator`.

A node is run by the library itself, so that results, what is stored in place, and refusals are those of a session in
ONNX Runtime, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from kvcache_ops import _native
from kvcache_ops._int4 import pack_int4, unpack_int4
from kvcache_ops._schemas import OPERATORS, Operator


def reference_ops() -> list[type[OpRun]]:
    """A class for each operator of dynamic batching in each of its domains, for `ReferenceEvaluator(new_ops=...)`.

    `cache` and `scale`, unless it is static, are written in place in the arrays that are fed: contiguous ones of numpy.
    An int4 cache is an array of `ml_dtypes.int4`, one element in a byte.
    """
    runs = [operator for operator in OPERATORS if _runs(operator)]
    return [_class_of(operator, domain) for operator in runs for domain in operator.domains]


def _runs(operator: Operator) -> bool:
    """Whether the library runs the operator from Python: of two operators of one name it is one."""
    return _native.input_names(operator.name) == [tensor.name for tensor in operator.inputs]


def _class_of(operator: Operator, domain: str) -> type[OpRun]:
    def run(self: OpRun, *inputs: Any, **attributes: Any) -> tuple[NDArray[Any], ...]:
        # The evaluator gives the node's attributes, and None for some that the node does not have.
        given = {name: value for name, value in attributes.items() if value is not None}
        return _run(operator, given, list(inputs), len(self.onnx_node.output))

    members = {"op_domain": domain, "_run": run, "__doc__": operator.text, "__module__": __name__}
    return type(operator.name, (OpRun,), members)


def _run(operator: Operator, attributes: dict[str, Any], inputs: list[Any], wanted: int) -> tuple[NDArray[Any], ...]:
    """The operator on these inputs, None for those that are left out; what is written in place is in their arrays."""
    inputs += [None] * (len(operator.inputs) - len(inputs))
    packed = {}
    for index, tensor in enumerate(operator.inputs):
        array = inputs[index]
        if array is None:
            continue
        if not tensor.in_out:
            # The evaluator's own operators give views.
            inputs[index] = np.ascontiguousarray(array)
        elif array.dtype.name == "int4":
            packed[index] = array
            inputs[index] = pack_int4(array.astype(np.int8))
    outputs: list[Any] = [None] * len(operator.required_outputs)
    if wanted > len(outputs):  # attention_mass
        kvstarts = inputs[_native.input_names(operator.name).index("kvstarts")]
        outputs.append(np.empty((attributes["num_heads"], kvstarts[-1]), np.float32))
    results = _native.run(operator.name, attributes, inputs, outputs)
    for index, array in packed.items():
        array[...] = unpack_int4(inputs[index]).astype(array.dtype)
    return (*results, *outputs[len(results) :])
