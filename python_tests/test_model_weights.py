"""Weights that are no numbers, of another byte order, or no weights: refused by name, before they give an answer."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import onnx
import pytest
from kvcache_ops import models
from kvcache_ops.models._build import open_checkpoint
from kvcache_ops.models._weights import checked, from_gguf, not_finite
from safetensors.numpy import load_file, save_file

from compare import refused
from tiny_exports import Graph, write_export
from tiny_folders import write_folder
from tiny_models import random_tensors, write_gguf

NAN, INF = float("nan"), float("inf")
# Where each type has float16 numbers that its weights are multiplied by, or that are added.
HALVES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_place_is_looked_at(value: float, dtype: type) -> None:
    """The first wrong number is found wherever it is; the largest one of the type is none."""
    values = np.ones((3, 1 << 20), dtype)
    values[1, 7] = ml_dtypes.finfo(dtype).max
    assert not_finite(values) is None and not_finite(values, None) is None
    for at in (values.size - 1, 1 << 20, 0):
        values.reshape(-1)[at] = value
        assert not_finite(values) == at
        assert not_finite(values, None) == (at if np.isnan(value) else None)


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("value", [NAN, INF])
def test_scales_of_blocks(kind: str, value: float) -> None:
    """A scale that is no finite number is found in any block of every type; the error names the tensor."""
    count, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    for at in HALVES[kind]:
        rows = np.full((4, 512 // count, size), 0x11, np.uint8)
        checked("blk.0.ffn_up.weight", from_gguf(kind, rows.reshape(4, -1)))
        rows[2, -1, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
        with refused("tensor_values", "blk.0.ffn_up.weight has the "), np.errstate(invalid="ignore"):
            checked("blk.0.ffn_up.weight", from_gguf(kind, rows.reshape(4, -1)))
    rows = np.full((4, 17 * 4), 0x7F, np.uint8)
    checked("mx", from_gguf("MXFP4", rows))
    for exponent in (255, 254):  # NaN, and what overflows
        rows[3, 17] = exponent
        with refused("tensor_values", "mx has the scale"):
            checked("mx", from_gguf("MXFP4", rows))


@pytest.mark.parametrize(("kind", "value"), [("F32", NAN), ("F16", INF), ("BF16", NAN)])
@pytest.mark.parametrize("name", ["blk.1.ffn_gate.weight", "output_norm.weight", "token_embd.weight"])
def test_a_file(name: str, kind: str, value: float, tmp_path: Path) -> None:
    """Weights of every float type are checked, and nothing of the half-written model is left."""
    tensors = random_tensors()
    tensors[name].reshape(-1)[5] = value
    path = write_gguf(tmp_path / "tiny.gguf", kind, tensors=tensors)
    with refused("tensor_values", f"{name} has the value {value} at ["):
        models.build(path, tmp_path / "model")
    assert list((tmp_path / "model").iterdir()) == []


def test_a_folder_and_its_norms(tmp_path: Path) -> None:
    """The error has the folder's names."""
    folder = write_folder(tmp_path / "source", dtype=np.float16)
    tensors = load_file(folder / "model-0.safetensors")
    name = next(name for name in tensors if name.endswith("input_layernorm.weight"))
    tensors[name][3] = -INF
    save_file(tensors, folder / "model-0.safetensors")
    with refused("tensor_values", f"{name} has the value -inf at [3]"):
        models.build(folder, tmp_path / "model")


@pytest.mark.parametrize(("weights", "most"), [("float16", 7e4), ("int8", 1e7), ("int4", 1e6)])
def test_what_is_asked_for_overflows(weights: str, most: float, tmp_path: Path) -> None:
    """In float16, or in the float16 scales of blocks."""
    tensors = random_tensors()
    tensors["blk.0.ffn_up.weight"][1, 2] = most
    path = write_gguf(tmp_path / "tiny.gguf", tensors=tensors)
    with refused(
        "weights_range", f"blk.0.ffn_up.weight has values up to {most:g}, which overflow in weights {weights!r}"
    ):
        models.build(path, tmp_path / "model", weights=weights)
    models.build(path, tmp_path / "model")


def test_another_byte_order(tmp_path: Path) -> None:
    """The package takes blocks as bytes, so their scales would be wrong numbers."""
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_uint32("llama.block_count", 1)
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with refused("byte_order", "big.gguf is big-endian, expected little-endian: `gguf-convert-endian big.gguf little`"):
        open_checkpoint(tmp_path / "big.gguf")


def test_an_export(tmp_path: Path) -> None:
    """Its weights in a file beside the graph; a mask may have -inf, and nothing may have NaN."""
    export = write_export(tmp_path / "export", Graph())
    models.build(export, tmp_path / "model")
    found = onnx.load(export / "model.onnx", load_external_data=False)
    data = bytearray((export / "model.onnx.data").read_bytes())
    seen = set()
    for tensor in found.graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if not where or tensor.data_type != onnx.TensorProto.FLOAT or tensor.name in ("cos", "sin"):
            continue
        seen.add(tensor.name)
        place = int(where["offset"])
        changed = bytearray(data)
        changed[place + 8 : place + 12] = np.float32(NAN).tobytes()
        (export / "model.onnx.data").write_bytes(changed)
        with refused("tensor_values", f"{tensor.name} has the value nan at ["):
            models.build(export, tmp_path / "other")
    assert len(seen) > 5
    (export / "model.onnx.data").write_bytes(data)
    models.build(export, tmp_path / "other")


def zipped(name: str) -> bytes:
    """A zip archive with a file of this name."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, b"content")
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "probably a pointer of Git LFS"),
        (b"\n<!DOCTYPE html><html>", "probably a web page"),
        (b"<?xml version='1.0'?><Error>", "probably XML"),
        (gzip.compress(b"GGUF", mtime=0), "probably a gzip file"),
        (zipped("archive/data.pkl"), "probably a PyTorch checkpoint"),
        (zipped("model.txt"), "probably a zip archive"),
        (b"\x80\x02}q\x00", "probably a pickle"),
        (b'\x10\0\0\0\0\0\0\0{"a":{}}', "probably a safetensors file"),
        (b"\x08\x0a\x12\x07pytorch", "probably an ONNX model"),
        (b'{"a": 1}', "probably JSON"),
        (b"tjgg\x01\0\0\0", "probably a GGML file"),
        (bytes(9000), "probably a file of zeros"),
        (b"404: Not Found\n", "probably text"),
    ],
)
def test_what_a_file_is_instead(content: bytes, what: str, tmp_path: Path) -> None:
    """In the places of weights, of a graph, of its data and of JSON."""
    (path := tmp_path / "model.gguf").write_bytes(content)
    with refused("source_damaged", what):
        open_checkpoint(path)
    if "safetensors" in what or "JSON" in what or "ONNX" in what:
        return
    folder = write_folder(tmp_path / "folder")
    for name in ("model-0.safetensors", "tokenizer.json", "config.json"):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        with refused("source_damaged", what):
            open_checkpoint(folder)
        (folder / name).write_bytes(before)
    export = write_export(tmp_path / "export", Graph())
    (export / "model.onnx.data").write_bytes(content)
    if len(content) < 9000:
        with refused("source_damaged", what):
            models.build(export, tmp_path / "model")
    (export / "model.onnx").write_bytes(content)
    with refused("source_damaged", what):
        models.build(export, tmp_path / "model")


def test_weights_of_other_kinds_in_a_folder(tmp_path: Path) -> None:
    """Are named where there are no safetensors."""
    folder = write_folder(tmp_path / "source")
    for path in folder.glob("*.safetensors"):
        path.rename(path.with_suffix(".bin"))
    with refused("source_missing", "source but model-0.bin, model-1.bin"):
        open_checkpoint(folder)
    (tmp_path / "files").mkdir()
    write_gguf(tmp_path / "files" / "tiny.gguf")
    with refused("source_missing", "files but tiny.gguf: name the file"):
        open_checkpoint(tmp_path / "files")
