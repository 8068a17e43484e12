"""MultiHeadCacheAttention in ONNX Runtime, without the package: makes attention.onnx and runs it.

    python attention.py libkvcache_ort.so

The cache has the operator's default layout, 0; layout 3 decodes faster.
"""

import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

# A prompt of 2 tokens, and another sequence's 11th token.
index = {"seqstarts": [0, 2, 3], "kvstarts": [0, 2, 13], "cachestarts": [0, 512], "start_pos": [0, 10]}
index |= {"decoding_batches": [0], "max_seqlen": [2], "max_kvlen": [11]}
rows = ["query", "current_key", "current_value"]

inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["tokens", None, 64]) for name in rows]
inputs += [helper.make_tensor_value_info(name, TensorProto.INT64, [None]) for name in index]
inputs += [helper.make_tensor_value_info("cache", TensorProto.FLOAT, ["MaxT", 1, 2, 8, 64])]
output = helper.make_tensor_value_info("attn_output", TensorProto.FLOAT, ["tokens", 32, 64])
node = helper.make_node(
    "MultiHeadCacheAttention",
    [value.name for value in inputs],
    ["attn_output"],
    domain="opmx.dynamic_batching",
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
)
opsets = [helper.make_opsetid("", 21), helper.make_opsetid(node.domain, 1)]
graph = helper.make_graph([node], "attention", inputs, [output])
onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), "attention.onnx")

options = onnxruntime.SessionOptions()
options.register_custom_ops_library(sys.argv[1])
session = onnxruntime.InferenceSession("attention.onnx", options, providers=["CPUExecutionProvider"])
cache = np.zeros((1024, 1, 2, 8, 64), np.float32)  # (MaxT, L, 2, Hk, Dh); the operator writes this very array
query, current = np.ones((3, 32, 64), np.float32), np.ones((3, 8, 64), np.float32)
feeds = {name: np.array(values, np.int64) for name, values in index.items()}
feeds |= {"query": query, "current_key": current, "current_value": current, "cache": cache}
[attn_output] = session.run(None, feeds)
assert attn_output.shape == (3, 32, 64) and cache[522].all() and (attn_output[:2] == 1).all()
print(attn_output[0, 0, 0], attn_output[1, 0, 0])
