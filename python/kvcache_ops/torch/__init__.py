"""The operators as functions of torch tensors: eagerly, under `torch.compile`, and in `torch.onnx.export`.

    key, value = key_value_cache(current_key, current_value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen,
                                 max_kvlen, cache, scale, num_layer=32, layer_idx=7, cache_mode=1)
    attn_output = multi_head_cache_attention(query, current_key, ..., num_heads=32, head_dim=128, num_kv_heads=8)

Inputs are as in `kvcache_ops.run`, `multi_head_attention` and `multi_head_cache_attention`, index inputs int64 tensors;
keyword arguments are the operators' attributes, of which `scale` is called attention_scale.

Called eagerly, or in a compiled function, the operators run on the CPU and write `cache` and `scale` in place, the very
memory of the tensors: nothing is copied. What is refused raises KvCacheError, and has then written nothing. While a
model is exported, each call becomes one node of the domain `opmx.dynamic_batching`, which the library of this package
runs in ONNX Runtime:

    program = torch.onnx.export(model, (), kwargs=inputs, dynamic_shapes=..., opset_version=20)

A model takes `cache` and `scale` as arguments of its `forward`, so that they become inputs of the graph. A buffer would
become a constant, and the library refuses to write one. An int4 cache is a uint8 tensor, two elements in a byte, the
first in the low nibble; `int4_inputs` gives an exported graph the type that ONNX has for it.

Of the compiler's backends, inductor keeps the writes in place; "aot_eager", for debugging, copies the cache forth and
back. `torch.compile` does not know how many keys `key_value_cache` returns before it runs, and inductor refuses batched
matrix products of such sizes; what `multi_head_cache_attention` returns has the queries' shape.

Needs torch 2.8 or later; importing `kvcache_ops` alone imports no torch.
"""

from __future__ import annotations

from kvcache_ops.torch._functions import (
    int4_inputs,
    key_value_cache,
    multi_head_attention,
    multi_head_cache_attention,
)

__all__ = ["int4_inputs", "key_value_cache", "multi_head_attention", "multi_head_cache_attention"]
