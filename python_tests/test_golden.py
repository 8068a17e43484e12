"""Every golden case through ONNX Runtime. (Through `run` and the attention functions: test_conformance.py.)"""

from __future__ import annotations

import pytest

from compare import Arrays, assert_same_arrays
from golden_cases import SUITES, GoldenCase, check_all
from node import DOMAIN, INPUTS, OPERATORS, STATIC_DOMAINS, STATIC_INPUTS, node_model, run_node, session_of, types_of

# The types that ONNX Runtime chooses an operator by: what has none of them it refuses itself, and names the input and
# the type as the cases ask, but has no kinds of errors. Other inputs may be of any type, which the operator refuses.
ROWS = {"float32", "float16", "int8", "bfloat16"}
SIGNATURE = dict(query=ROWS, current_key=ROWS, cache=ROWS | {"uint8", "float8_e4m3fn"})  # uint8: packed int4
SIGNATURE |= {name: {"int64"} for name in (*INPUTS[2:8], "decoding_batches")}


def in_signature(operator: str, inputs: Arrays) -> bool:
    """Whether the operator is registered for arrays of these types."""
    chosen_by = {name: x.dtype.name for name, x in inputs.items() if name in SIGNATURE}
    if operator == "MultiHeadCacheAttention":
        del chosen_by["current_key"]  # the first input is query
    return all(name in SIGNATURE[input] for input, name in chosen_by.items())


def through_onnxruntime(case: GoldenCase) -> None:
    """Each step succeeds with the oracle's bytes, or is refused and changes nothing."""
    signature, outputs = OPERATORS[case.operator]
    is_static = not any(name.endswith(".seqstarts") for name in case.tensors)
    signature = STATIC_INPUTS if is_static else signature
    state = case.state()
    for i, step in enumerate(case.steps):
        inputs = case.inputs(i, signature) | state
        domain = STATIC_DOMAINS[i % 2] if is_static else DOMAIN
        types = types_of(inputs, case.int4_shape is not None)
        model = node_model(types, case.attributes, operator=case.operator, domain=domain)
        if "error" in step:
            before = {name: array.copy() for name, array in state.items()}
            with pytest.raises(Exception) as refusal:
                run_node(session_of(model), inputs, case.int4_shape)
            kind = [f"{step['error']}: "] if in_signature(case.operator, inputs) else []
            assert_mentioned(kind + step["mentions"], refusal.value)
            assert_same_arrays(state, before)
        else:
            got = run_node(session_of(model), inputs, case.int4_shape)
            case.check(i, dict(zip(outputs, got)) | state)


def assert_mentioned(words: list, refusal: BaseException) -> None:
    """All of them are in the message."""
    missing = [word for word in words if str(word) not in str(refusal)]
    assert not missing, f"{missing} not in: {refusal}"


@pytest.mark.runtime
@pytest.mark.parametrize("suite", SUITES)
def test_golden_cases_in_onnxruntime(suite: str) -> None:
    """Domains of static batching take turns."""
    check_all(suite, through_onnxruntime)
