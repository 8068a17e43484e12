"""Exports the trained model from torch, and writes decoder.onnx and decoder_fused.onnx.

    python export.py [FOLDER]

The graphs refer to the weights in weights.safetensors by offset, and contain none. Their cache is int8 in groups of 32
with float16 scales; another format changes attributes and the types of two inputs. Needs requirements-torch.txt.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path

import onnx
import torch
from safetensors.torch import load_file

from llama import Llama, Sizes
from serving import Serving

FOLDER = Path(__file__).parent
PAGE_SIZE = 16
WEIGHTS = "weights.safetensors"
FLOAT = onnx.TensorProto.FLOAT
PARAMETER = re.compile(r"^llama\.(.*\.weight)$")


def trained() -> Llama:
    """The model with its weights, in float32."""
    model = Llama(Sizes()).eval()
    model.load_state_dict({name: weight.float() for name, weight in load_file(FOLDER / WEIGHTS).items()})
    return model


def example_inputs(sizes: Sizes) -> dict[str, torch.Tensor]:
    """A step of three sequences, by which the exporter traces: 2, 1 and 2 new tokens after 0, 2 and 6."""
    max_t, axes = 96, (sizes.num_layer, 2, sizes.num_kv_heads)

    def index(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64)

    return dict(
        token_ids=index(1, 2, 3, 4, 5),
        positions=index(0, 1, 2, 6, 7),
        seqstarts=index(0, 2, 3, 5),
        kvstarts=index(0, 2, 5, 13),
        cachestarts=index(0, 16, 32, 48, 64, 80).reshape(3, 2),
        start_pos=index(0, 2, 6),
        max_seqlen=torch.tensor(2),
        max_kvlen=torch.tensor(8),
        cache=torch.zeros((*axes, max_t, sizes.head_dim), dtype=torch.int8),
        scale=torch.zeros((*axes, max_t, sizes.head_dim // 32), dtype=torch.float16),
    )


def export(model: Llama, *, fused: bool) -> onnx.ModelProto:
    """The graph, without weights and without the exporter's notes. ONNX Runtime 1.20 reads it, and all later ones."""
    serving = Serving(model, fused=fused, page_size=PAGE_SIZE, quant_bit=8, quant_group=32).eval()
    inputs = example_inputs(model.sizes)
    tokens, batch, max_t, pages = (torch.export.Dim(name) for name in ("tokens", "batch", "MaxT", "MaxP"))
    shapes = {name: None for name in inputs} | dict(
        token_ids={0: tokens},
        positions={0: tokens},
        seqstarts={0: batch + 1},
        kvstarts={0: batch + 1},
        cachestarts={0: batch, 1: pages},
        start_pos={0: batch},
        cache={3: max_t},
        scale={3: max_t},
    )
    program = torch.onnx.export(
        serving, (), kwargs=inputs, dynamic_shapes=shapes, output_names=["logits"], opset_version=20, verbose=False
    )
    graph = program.model_proto.graph
    casts = [
        onnx.helper.make_node("Cast", [weight.name], [f"{weight.name}_float32"], name=f"cast_{weight.name}", to=FLOAT)
        for weight in stored_weights()
    ]
    for node in graph.node:
        node.input[:] = [PARAMETER.sub(r"\1_float32", name) for name in node.input]
        del node.metadata_props[:]
    constants = [initializer for initializer in graph.initializer if not PARAMETER.match(initializer.name)]
    for described in (*constants, *graph.input, *graph.output):
        del described.metadata_props[:]
    smaller = onnx.helper.make_graph(
        [*casts, *graph.node], "austen", graph.input, graph.output, [*stored_weights(), *constants]
    )
    return onnx.helper.make_model(
        smaller, ir_version=10, opset_imports=program.model_proto.opset_import, producer_name="torch"
    )


def stored_weights() -> list[onnx.TensorProto]:
    """The weights as tensors whose bytes are places in the file of weights."""
    with (FOLDER / WEIGHTS).open("rb") as file:
        (header_size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_size))
    tensors = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT16, dims=entry["shape"])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS), ("offset", 8 + header_size + begin), ("length", end - begin)):
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    return tensors


def main() -> None:
    """Writes both graphs."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    model = trained()
    for name, fused in (("decoder", False), ("decoder_fused", True)):
        (folder / f"{name}.onnx").write_bytes(export(model, fused=fused).SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
