"""Which operators are lowered, and to what."""

from __future__ import annotations

from collections.abc import Callable

from onnx import NodeProto

from kvcache_pmx import _linear, _ragged
from kvcache_pmx._activations import gated, gelu, layer_norm, rms_norm, swish, tensor_parallel_rms_norm
from kvcache_pmx._body import Function
from kvcache_pmx._call import Call

# The domains of exports since 2024-04-23, and of earlier ones.
STATIC_DOMAINS = frozenset({"opmx", "pmx"})
DYNAMIC_DOMAINS = frozenset({"opmx.dynamic_batching", "pmx.dynamic_batching"})
# What stands for MultiHeadAttention where the library's operator is not to be used. The name is one that no runtime
# and no library has.
PACKED_ATTENTION = "PackedAttention"

# The operators of kvcache_ops, and the position of `current_value` among their inputs.
_NATIVE = {"KeyValueCache": 1, "MultiHeadAttention": None, "MultiHeadCacheAttention": 2}
_STATIC: dict[str, Callable[[Call], Function]] = {
    "ALiBiSlope": _ragged.alibi_slope,
    "ColumnParallelLinear": _linear.linear,
    "GELU": gated(gelu),
    "GeGLU": gated(gelu, halves=True),
    "LayerNorm": layer_norm,
    "Linear": _linear.linear,
    "MoeColumnParallelLinear": _linear.moe_linear,
    "MoeReduce": _linear.moe_reduce,
    "MoeRowParallelLinear": _linear.moe_linear,
    "MoeSelect": _linear.moe_select,
    "ParallelEmbedding": _linear.parallel_embedding,
    "RMSNorm": rms_norm,
    "Reshape": _linear.reshape,
    "RowParallelLinear": _linear.linear,
    "SiLU": gated(swish),
    "SwiGLU": gated(swish, halves=True),
    "Swish": gated(swish),
    "TensorParallelRMSNorm": tensor_parallel_rms_norm,
}
_DYNAMIC: dict[str, Callable[[Call], Function]] = {
    "ALiBiMask": _ragged.alibi_mask,
    PACKED_ATTENTION: _ragged.multi_head_attention,
    "PositionIndex": _ragged.position_index,
    "RotaryPositionEmbedding": _ragged.rotary_position_embedding,
}


def is_native(node: NodeProto) -> bool:
    """Whether kvcache_ops has the node's operator."""
    if node.domain in STATIC_DOMAINS:
        return node.op_type == "KeyValueCache"
    return node.domain in DYNAMIC_DOMAINS and node.op_type in _NATIVE


def stored_value_input(node: NodeProto) -> int | None:
    """Where an operator of kvcache_ops takes the values that it stores; None if it stores none."""
    return _NATIVE[node.op_type]


def lowering_of(node: NodeProto) -> Callable[[Call], Function] | None:
    """What makes the function that stands for the node's operator, if there is one."""
    if node.domain in STATIC_DOMAINS:
        return _STATIC.get(node.op_type)
    return _DYNAMIC.get(node.op_type) if node.domain in DYNAMIC_DOMAINS else None
