"""Operators inside ONNX Runtime: ours, and what people use today."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
from kvcache_ops import DOMAIN, library_path
from onnx import TensorProto, helper

from cases import FLOAT, INT8, NUMPY_TYPES
from harness import Contender
from tensors import Tensors, allocate, random_tensor

MICROSOFT = "com.microsoft"
OPSET, IR_VERSION = 21, 10  # what ONNX Runtime 1.20 reads
# The inputs of both operators, in the specification's order.
INPUTS = (
    "query current_key current_value seqstarts kvstarts cachestarts start_pos decoding_batches max_seqlen max_kvlen"
)
INPUTS = (*INPUTS.split(), "cache", "scale")

Run = Callable[[], object]


def session_of(model: bytes, threads: int, library: str | None = None) -> onnxruntime.InferenceSession:
    """A session with that many threads, none of which spins: after a call it would take the next contender's core."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if library:
        options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def bound(
    session: onnxruntime.InferenceSession,
    inputs: dict[str, np.ndarray],
    outputs: dict[str, np.ndarray],
    **described: tuple[int, tuple[int, ...], int],
) -> Run:
    """A run of the session on the arrays' own memory, which it keeps alive.

    Some inputs may be described by an element type, a shape and an address.
    """
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, array in arrays.items():
            plain = helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.ctypes.data
            bind(name, "cpu", 0, *described.get(name, plain))
    return lambda held=(inputs, outputs): session.run_with_iobinding(binding)


def node_model(
    op_type: str, inputs: dict[str, int], outputs: dict[str, int], domain: str = "", **attributes: int | str
) -> bytes:
    """A graph of one node, whose inputs and outputs have these types; an input of type 0 is left out."""
    names = [name if element else "" for name, element in inputs.items()]
    node = helper.make_node(op_type, names, list(outputs), domain=domain, **attributes)
    values = [
        [helper.make_tensor_value_info(*item, None) for item in each.items() if item[1]] for each in (inputs, outputs)
    ]
    graph = helper.make_graph([node], op_type, *values)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets[: 1 + bool(domain)]).SerializeToString()


def called(tensors: Tensors, threads: int, op_type: str, domain: str, library: str, **attributes: int) -> Run:
    """A call of a custom operator with the tensors of a case, in a session of its own."""
    inputs = {name: tensors.inputs[name] for name in INPUTS if name in tensors.inputs}
    types = [{name: tensors.described(name)[0] for name in names} for names in (inputs, tensors.outputs)]
    session = session_of(node_model(op_type, *types, domain, **attributes), threads, library)
    return bound(session, inputs, tensors.outputs, cache=tensors.described("cache"))


def operator(tensors: Tensors, threads: int) -> Contender:
    """The operator of the built library, a session for each layer, whose answer is checked."""
    case = tensors.case
    runs = [
        called(tensors, threads, tensors.op_type, DOMAIN, library_path(), **tensors.attributes | {"layer_idx": i})
        for i in tensors.layers
    ]
    tensors.check(f"in ONNX Runtime on {threads} threads", runs[0])
    return Contender(f"{case.name}, in ONNX Runtime", runs, threads, case.cold, is_busy=case.cold)


def matrix_product(threads: int, size: int) -> list[Contender]:
    """Products of square float32 matrices, by ONNX Runtime and, on all processors, by numpy's library."""
    a, b, c = (random_tensor(FLOAT, (size, size)) for _ in range(3))
    model = node_model("MatMul", dict.fromkeys("ab", FLOAT), {"c": FLOAT})
    run = bound(session_of(model, threads), {"a": a, "b": b}, {"c": c})
    # The threads of numpy's library keep on spinning for a while.
    return [
        Contender("MatMul in ONNX Runtime", [run], threads, is_busy=True),
        Contender("matmul in numpy", [lambda: np.matmul(a, b, out=c)], threads, rest_seconds=0.05),
    ]


def group_query_attention(tensors: Tensors, threads: int, bits: int = 0) -> Contender:
    """ONNX Runtime's own operator over contiguous caches, (B, Hk, MaxT, Dh), which it extends in place; its answer is
    checked.

    It has one length of new tokens for all sequences. With `bits`, eight or four, the caches are codes, with a
    scale for each channel of each head that never changes.
    """
    case, heads = tensors.case, tensors.case.heads
    t1, (tokens,) = case.format.t1, set(case.lengths.seqlens)
    batch, kvlen = len(case.lengths.kvlens), max(case.lengths.kvlens)
    t_cache = {0: t1, 8: INT8, 4: TensorProto.UINT8}[bits]
    number = np.dtype({0: NUMPY_TYPES[t1], 8: np.int8, 4: np.uint8}[bits])
    names = {"query": "query", "key": "current_key", "value": "current_value"}
    inputs = {name: tensors.inputs[given].reshape(batch, tokens, -1) for name, given in names.items()}
    lengths = {
        "seqlens_k": np.array(case.lengths.kvlens, np.int32) - 1,
        "total_sequence_length": np.array(kvlen, np.int32),
    }
    caches = ("past_key", "past_value")
    types = dict.fromkeys([*inputs, *caches, *lengths], t1)
    types |= dict.fromkeys(caches, t_cache) | dict.fromkeys(lengths, TensorProto.INT32)
    outputs = {"output": t1} | dict.fromkeys(("present_key", "present_value"), t_cache)
    attributes: dict[str, int | str] = dict(num_heads=heads.query, kv_num_heads=heads.key)
    scales: dict[str, np.ndarray] = {}
    # Channels that reach as far as the case's values, most of which are below 4.
    scale = np.full((1, heads.key, 1, heads.dim), 4 / 2 ** (bits - 1) if bits else 1, np.float32)
    if bits:
        attributes |= dict(k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL", kv_cache_bit_width=bits)
        scales = dict.fromkeys(("k_scale", "v_scale"), scale)
        types |= dict.fromkeys(("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"), 0)
        types |= dict.fromkeys(scales, FLOAT)
    session = session_of(node_model("GroupQueryAttention", types, outputs, MICROSOFT, **attributes), threads)
    output = np.empty((batch, tokens, heads.query * heads.dim), NUMPY_TYPES[t1])
    shape = (batch, heads.key, kvlen, heads.dim * (bits or 8) // 8)
    runs, layers = [], []
    for layer_idx in tensors.layers:
        held = [allocate(int(np.prod(shape)) * number.itemsize).view(number).reshape(shape) for _ in range(2)]
        for kv, array in enumerate(held):
            for b in range(batch):
                array[b] = static_codes(tensors.values(layer_idx, kv, b).transpose(1, 0, 2) / scale[0], bits)
        past, present = (dict(zip((f"{when}_key", f"{when}_value"), held)) for when in ("past", "present"))
        runs.append(bound(session, inputs | past | lengths | scales, {"output": output} | present))
        layers.append(held)

    def own_values(kv: int, b: int) -> np.ndarray:
        """What its codes stand for, once it has stored the current tokens."""
        codes = layers[0][kv][b].transpose(1, 0, 2)
        if bits == 4:
            codes = (np.stack([codes & 15, codes >> 4], -1).reshape(kvlen, heads.key, heads.dim)).astype(np.int8) - 8
        return codes * scale[0, :, 0].astype(np.float64)

    runs[0]()
    who = f"GroupQueryAttention on {threads} threads"
    tensors.check_attention(who, output.reshape(-1, heads.query, heads.dim), tensors.answers(own_values))
    kind = f"int{bits} with a scale for each channel" if bits else case.format.name
    return Contender(f"{kind}, GroupQueryAttention", runs, threads, case.cold, is_busy=True)


def static_codes(quotients: np.ndarray, bits: int) -> np.ndarray:
    """Codes of these quotients of value and scale; of four bits two are a byte, each plus 8, the first one low."""
    if not bits:
        return quotients
    largest = 2 ** (bits - 1) - 1
    codes = np.clip(np.rint(quotients), -largest - 1, largest).astype(np.int8)
    if bits == 8:
        return codes
    nibbles = (codes + 8).astype(np.uint8)
    return nibbles[..., ::2] | nibbles[..., 1::2] << 4
