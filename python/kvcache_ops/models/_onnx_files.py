"""The files of an ONNX export: which of them are read, the graph and the weights in them, and links to them."""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, helper, inliner

from kvcache_ops._errors import KvCacheError
from kvcache_ops._model_cache import digest
from kvcache_ops.models._graph_reader import Values, all_tensors, bytes_of, check_texts, sort, unsupported
from kvcache_ops.models._source_files import probably
from kvcache_ops.models._weights import check_finite
from kvcache_ops.ops._nodes import all_nodes

GENAI, CONFIG = "genai_config.json", "config.json"
_FLOATS: tuple[int, ...] = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# What these operators read is no mask, whose -inf is meant.
_WEIGHTED = (
    "MatMul", "Gemm", "MatMulNBits", "Gather", "GatherBlockQuantized", "DequantizeLinear", "LayerNormalization",
    "SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormalization",
)  # fmt: skip


def is_export(path: Path) -> bool:
    """Whether this is a folder with an ONNX model of others, or its file."""
    if path.is_file():
        return path.suffix == ".onnx"
    return (path / GENAI).is_file() or (bool(_graphs(path)) and not any(path.glob("*.safetensors")))


def _graphs(folder: Path) -> list[Path]:
    """The ONNX files of a folder, or, as on the Hugging Face Hub, of the folder onnx in it."""
    return sorted(folder.glob("*.onnx")) or sorted(folder.glob("onnx/*.onnx"))


def graph_of(path: Path, named: Any) -> Path:
    """The file of the graph: this one; the one that genai_config.json names; the only one."""
    if path.is_file():
        return path
    if named is not None:
        if not isinstance(named, str):
            raise KvCacheError(f"filename is {named!r} in {GENAI}, expected a text", "config_type")
        if _leads_out(named):
            raise KvCacheError(f"filename is {named!r} in {GENAI}, expected a file in {path}", "config_range")
        return path / named
    found = _graphs(path)
    if len(found) > 1:
        names = ", ".join(str(file.relative_to(path)) for file in found)
        raise KvCacheError(f"{path} has {names}: expected the path of one of them", "source_ambiguous")
    return found[0] if found else path / "model.onnx"


def described_by(path: Path) -> Path:
    """The folder of the configuration and the tokenizer: the graph's own, or the one around a folder onnx."""
    folder = path if path.is_dir() else path.parent
    place = folder.absolute()
    here = (folder / GENAI).is_file() or (folder / CONFIG).is_file()
    return place.parent if not here and place.name == "onnx" and (place.parent / CONFIG).is_file() else folder


def load_graph(file: Path) -> tuple[bytes, ModelProto]:
    """A file's bytes, and its model without functions of its own."""
    if not file.is_file():
        raise KvCacheError(f"there is no {file.name} in {file.parent}", "source_missing")
    content = file.read_bytes()
    if not content:
        raise KvCacheError(f"{file} is no ONNX model: it is empty", "source_damaged")
    try:
        model = ModelProto.FromString(content)
        check_texts(model.graph)
    except Exception as error:  # protobuf's own
        raise KvCacheError(f"{file} is no ONNX model: {error}{probably(file)}", "source_damaged") from error
    newest = {"": onnx.defs.onnx_opset_version(), "ai.onnx": onnx.defs.onnx_opset_version(), "com.microsoft": 1}
    for opset in model.opset_import:
        if opset.version > newest.get(opset.domain, opset.version):
            message = f"{file} has opset {opset.version} of {opset.domain or 'ai.onnx'}"
            raise unsupported(f"{message}, expected at most {newest[opset.domain]}")
    model = inliner.inline_local_functions(model) if model.functions else model
    sort(model.graph)
    return content, model


def data_files(model: ModelProto, folder: Path) -> list[str]:
    """The files with the model's tensors; each exists and is long enough."""
    sizes: dict[str, int] = {}
    for tensor in all_tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        where = {entry.key: entry.value for entry in tensor.external_data}
        location = where.get("location", "")
        if _leads_out(location):
            message = f"{tensor.name} is in {location}, expected a file in {folder}"
            raise KvCacheError(message, "source_damaged")
        if location not in sizes:
            path = folder / location
            if not path.is_file():
                message = f"there is no {location} in {folder}, where {tensor.name} is"
                raise KvCacheError(message, "source_missing")
            sizes[location] = path.stat().st_size
        needed = bytes_of(tensor)
        try:
            begin, length = int(where.get("offset", 0)), int(where.get("length", needed))
        except ValueError as error:
            raise KvCacheError(f"{tensor.name} lies at no place of {location}: {error}", "source_damaged") from error
        if length != needed or begin < 0 or begin + length > sizes[location]:
            message = f"{tensor.name} has {length} bytes from {begin} of {location}, which has {sizes[location]}"
            raise KvCacheError(f"{message}; expected {needed} within it{probably(folder / location)}", "source_damaged")
    return list(sizes)


def _leads_out(location: str) -> bool:
    """Whether a path leads out of the folder that it is in, other than by links."""
    return Path(location).is_absolute() or ".." in Path(location).parts


def check_values(graph: GraphProto, folder: Path, made: set[str]) -> None:
    """Refuses NaN in any float tensor of the graph, and infinity in weights.

    folder: where their files are. made: names of tensors that are not written yet.

    Raises KvCacheError "tensor_values".
    """
    values, weights = Values(graph, folder), set()
    for node in all_nodes(graph.node):
        if node.op_type in _WEIGHTED:
            weights.update(node.input)
    for tensor in graph.initializer:
        if tensor.data_type not in _FLOATS or tensor.name in made:
            continue
        array = _array(tensor, values, folder)
        check_finite(tensor.name, array, np.inf if tensor.name in weights else None)


def _array(tensor: TensorProto, values: Values, folder: Path) -> NDArray[Any]:
    """The elements of a tensor; a tensor in a data file is mapped, not read."""
    if tensor.data_location != TensorProto.EXTERNAL or not all(tensor.dims):
        return values.array(tensor)
    where = {entry.key: entry.value for entry in tensor.external_data}
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    place, shape = int(where.get("offset", 0)), tuple(tensor.dims)
    return np.memmap(folder / where["location"], dtype, "r", place, shape)


@dataclass(frozen=True)
class LinkedFile:
    """A file that a built model shares with an export, as it was when the model was built."""

    name: str
    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> LinkedFile:
        """A file as it is now."""
        stat = path.stat()
        return cls(path.name, stat.st_size, stat.st_mtime_ns, digest(path))

    def check(self, folder: Path) -> None:
        """Refuses a file that has changed; one of another time, as copies are, is read."""
        path = folder / self.name
        if not path.is_file():
            raise KvCacheError(f"there is no {path}", "model_missing")
        stat = path.stat()
        if stat.st_size != self.size or (stat.st_mtime_ns != self.mtime_ns and digest(path) != self.sha256):
            message = f"{path} has changed since the model was built, with the export that it belongs to: build again"
            raise KvCacheError(message, "model_damaged")


def link_file(source: Path, place: Path) -> str:
    """Links a file to another, or copies it; returns which."""
    try:
        os.link(source, place)
        return "a hard link to"
    except OSError as error:  # of another file system, or another owner
        warnings.warn(f"{source} is copied, since there can be no hard link to it: {error.strerror}", stacklevel=4)
        shutil.copyfile(source, place)
        return "a copy, since no hard link was possible, of"
