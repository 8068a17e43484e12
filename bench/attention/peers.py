"""The same work by what people use today: ONNX Runtime's GroupQueryAttention, standard operators behind KeyValueCache.

Every peer attends over the sequences' keys and values of a case, which it gets in the arrangement that suits it, and
must give the right answer before it is measured.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper

from attention_tensors import AttentionTensors
from graph import IR_VERSION, OPSET, Graph
from kvcache import DOMAIN, ELEMENT_TYPES, NUMPY_TYPES, bind, find_library
from measure import Contender
from ours import Expected
from runtime import bind_output, caller, session_of, timed
from tensors import Arena

MICROSOFT = "com.microsoft"


def group_query_attention(tensors: AttentionTensors, threads: int, expected: Expected, arena: Arena) -> Contender:
    """ONNX Runtime's own operator over contiguous caches, (B, Hk, MaxT, Dh), which it extends in place.

    It has one length of new tokens for all sequences.
    """
    case, heads = tensors.case, tensors.case.heads
    t1, (tokens,) = case.format.t1, set(case.lengths.seqlens)
    batch, kvlen = len(case.lengths.kvlens), max(case.lengths.kvlens)
    shape = (batch, heads.key, kvlen, heads.dim)
    inputs = {
        "query": tensors.inputs["query"].reshape(batch, tokens, -1),
        "key": tensors.inputs["current_key"].reshape(batch, tokens, -1),
        "value": tensors.inputs["current_value"].reshape(batch, tokens, -1),
    }
    lengths = {
        "seqlens_k": np.array(case.lengths.kvlens, np.int32) - 1,
        "total_sequence_length": np.array(kvlen, np.int32),
    }
    names = [*inputs, "past_key", "past_value", *lengths]
    outputs = ["output", "present_key", "present_value"]
    node = helper.make_node(
        "GroupQueryAttention", names, outputs, domain=MICROSOFT, num_heads=heads.query, kv_num_heads=heads.key
    )
    types = dict.fromkeys(names, t1) | dict.fromkeys(lengths, TensorProto.INT32)
    graph = helper.make_graph(
        [node],
        "peer",
        [helper.make_tensor_value_info(name, types[name], None) for name in names],
        [helper.make_tensor_value_info(name, t1, None) for name in outputs],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()
    session = session_of(model, threads)
    output = arena.tensor(f"{case.name} peer's output", t1, (batch, tokens, heads.query * heads.dim))
    runs = []
    for layer_idx in tensors.layers:
        binding = session.io_binding()
        for name, array in inputs.items():
            bind(binding, name, array)
        for name, array in lengths.items():
            binding.bind_input(name, "cpu", 0, TensorProto.INT32, array.shape, array.ctypes.data)
        held = [arena.tensor(f"{case.name} past {kv} of {layer_idx}", t1, shape) for kv in range(2)]
        for kv, (past, array) in enumerate(zip(("key", "value"), held)):
            for b, m in enumerate(case.lengths.kvlens):
                array[b, :, :m] = tensors.values(layer_idx, kv, b).transpose(1, 0, 2)
            bind(binding, f"past_{past}", array)
            bind_output(binding, f"present_{past}", array)
        bind_output(binding, "output", output)
        runs.append(keeping(caller(session, binding), held, inputs, lengths, output))
    rows = output.reshape(-1, heads.query, heads.dim)
    verify(tensors, "GroupQueryAttention", threads, expected, rows, runs[0])
    name = f"{case.format.name}, GroupQueryAttention"
    return Contender(name, "attention", threads, timed(runs, busy_threads=threads), cold=case.cold)


def standard(tensors: AttentionTensors, threads: int, expected: Expected, arena: Arena) -> Contender:
    """`KeyValueCache`, then attention by standard operators under a mask by which each sequence sees its own keys."""
    case, heads = tensors.case, tensors.case.heads
    tokens, all_tokens = sum(case.lengths.seqlens), sum(case.lengths.kvlens)
    seqstarts, kvstarts = tensors.inputs["seqstarts"], tensors.inputs["kvstarts"]
    visible = np.zeros((tokens, all_tokens), bool)
    for b, (n, m) in enumerate(zip(case.lengths.seqlens, case.lengths.kvlens)):
        seen = np.arange(m) <= (m - n + np.arange(n))[:, None]
        visible[seqstarts[b] : seqstarts[b + 1], kvstarts[b] : kvstarts[b + 1]] = seen
    output = arena.tensor(f"{case.name} peer's output", case.format.t1, (tokens, heads.query, heads.dim))
    runs = []
    for layer_idx in tensors.layers:
        session = session_of(standard_model(tensors, layer_idx), threads, str(find_library()))
        binding = session.io_binding()
        for name, array in tensors.inputs.items():
            if name != "decoding_batches":
                bind(binding, name, array)
        binding.bind_input("visible", "cpu", 0, TensorProto.BOOL, visible.shape, visible.ctypes.data)
        bind_output(binding, "attn_output", output)
        runs.append(keeping(caller(session, binding), tensors, visible, output))
    verify(tensors, "standard operators", threads, expected, output, runs[0])
    name = f"{case.format.name}, KeyValueCache and standard operators"
    return Contender(name, "attention", threads, timed(runs, busy_threads=threads), cold=case.cold)


def standard_model(tensors: AttentionTensors, layer_idx: int) -> bytes:
    """The graph of `standard`."""
    heads, graph, t1 = tensors.case.heads, Graph(), tensors.case.format.t1
    inputs = [name for name in tensors.inputs if name not in ("query", "decoding_batches")]
    for name in inputs:
        graph.input(name, ELEMENT_TYPES[tensors.inputs[name].dtype])
    query, visible = graph.input("query", t1), graph.input("visible", TensorProto.BOOL)
    unused = ("num_heads", "head_dim", "is_causal", "is_alibi", "num_kv_heads")
    attributes = {name: value for name, value in tensors.attributes.items() if name not in unused}
    attributes |= {"layer_idx": layer_idx, "num_repeat": heads.query // heads.key}
    key, value = graph.nodes("KeyValueCache", 2, *inputs, domain=DOMAIN, **attributes)
    number = NUMPY_TYPES[t1]
    query = graph.node("Mul", query, graph.constant(number(heads.dim**-0.5)))
    query = graph.node("Transpose", query, perm=[1, 0, 2])
    scores = graph.node("MatMul", query, graph.node("Transpose", key, perm=[1, 2, 0]))
    masked = graph.node("Where", visible, scores, graph.constant(number(-np.inf)))
    weights = graph.node("Softmax", masked, axis=-1)
    mixed = graph.node("MatMul", weights, graph.node("Transpose", value, perm=[1, 0, 2]))
    graph.output("attn_output", graph.node("Transpose", mixed, perm=[1, 0, 2]), t1)
    return graph.serialize()


def torch_attention(tensors: AttentionTensors, threads: int, expected: Expected) -> Contender:
    """torch's scaled_dot_product_attention on gathered keys and values, (B, Hk, kvlen, Dh), one length for all."""
    import torch

    case, heads = tensors.case, tensors.case.heads
    (tokens,), (kvlen,) = set(case.lengths.seqlens), set(case.lengths.kvlens)
    batch = len(case.lengths.kvlens)
    query = torch.from_numpy(tensors.inputs["query"]).view(batch, tokens, heads.query, heads.dim).transpose(1, 2)
    layers = []
    for layer_idx in tensors.layers:
        gathered = [np.stack([tensors.values(layer_idx, kv, b) for b in range(batch)]) for kv in range(2)]
        by_head = [np.ascontiguousarray(x.transpose(0, 2, 1, 3), NUMPY_TYPES[case.format.t1]) for x in gathered]
        layers.append([torch.from_numpy(x) for x in by_head])

    def attend(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(threads)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=tokens == kvlen, enable_gqa=True
        )

    runs = [lambda layer=layer: attend(*layer) for layer in layers]
    output = attend(*layers[0]).transpose(1, 2).reshape(-1, heads.query, heads.dim)
    tensors.check(f"torch on {threads} threads", expected, output.numpy())
    name = f"{case.format.name}, torch"
    # OpenMP's threads keep on spinning for a while.
    return Contender(name, "attention", threads, timed(runs), cold=case.cold, rest_seconds=0.01)


def keeping(run: Callable[[], None], *held: object) -> Callable[[], None]:
    """The same run, which keeps the memory alive that it works on."""
    return lambda held=held: run()


def verify(
    tensors: AttentionTensors, name: str, threads: int, expected: Expected, output: np.ndarray, run: Callable[[], None]
) -> None:
    """Raises `WrongAnswer` unless the run gives the right answer."""
    output[:] = np.nan
    run()
    tensors.check(f"{name} on {threads} threads", expected, output)


def matrix_product(threads: int, size: int, arena: Arena) -> list[Contender]:
    """Products of square float32 matrices, by ONNX Runtime and, on all processors, by numpy's library."""
    a, b, c = (arena.random(f"factor {i}", TensorProto.FLOAT, (size, size)) for i in range(3))
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "abc"]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", value[:2], value[2:])
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()
    session = session_of(model, threads)
    binding = session.io_binding()
    bind(binding, "a", a)
    bind(binding, "b", b)
    bind_output(binding, "c", c)
    run = keeping(caller(session, binding), a, b, c)
    # The threads of numpy's library keep on spinning for a while.
    return [
        Contender("MatMul in ONNX Runtime", "product", threads, timed([run], busy_threads=threads)),
        Contender("matmul in numpy", "product", threads, timed([lambda: np.matmul(a, b, out=c)]), rest_seconds=0.05),
    ]
