"""Files of sources: texts and JSON, and what a file that is no model probably is, for the sentence that refuses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvcache_ops._errors import KvCacheError

_LFS = b"version https://git-lfs.github.com/spec/"
# By the first bytes, of which there may be several, and what to do, if there is something.
_BEGINNINGS: tuple[tuple[bytes | tuple[bytes, ...], str], ...] = (
    (b"GGUF", "a GGUF file"),
    (_LFS, "a pointer of Git LFS: `git lfs pull` brings the file"),
    (b"\x1f\x8b", "a gzip file: unpack it"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file: unpack it"),
    (b"BZh", "a bzip2 file: unpack it"),
    (b"\xfd7zXZ\x00", "an xz file: unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"),
    (b"\x80\x02", "a pickle, as older PyTorch checkpoints are: expected safetensors or GGUF"),
    ((b"\x80\x03", b"\x80\x04", b"\x80\x05"), "a pickle: expected safetensors or GGUF"),
    (b"\x89HDF\r\n", "an HDF5 file, as Keras has: expected safetensors or GGUF"),
    (b"\x93NUMPY", "an array of numpy: expected safetensors or GGUF"),
    ((b"lmgg", b"fmgg", b"tjgg"), "a GGML file, from before GGUF: expected GGUF"),
    ((b"\x7fELF", b"MZ"), "a program"),
    (b"%PDF", "a PDF document"),
)
_OTHER_MODELS = {b"TFL3": "TensorFlow Lite", b"ORTM": "ONNX Runtime's own format"}  # after 4 bytes
_PAGES = (b"<!doctype html", b"<html")


def probably(path: Path) -> str:
    """What a file is by its first bytes, as the end of a sentence; empty where its kind is unknown."""
    try:
        with path.open("rb") as file:
            begin = file.read(4096)
    except OSError:
        return ""
    kind = _kind(begin)
    return f"; it is {'' if kind == 'empty' else 'probably '}{kind}" if kind else ""


def _kind(begin: bytes) -> str:
    if not begin:
        return "empty"
    for beginning, kind in _BEGINNINGS:
        if begin.startswith(beginning):
            return kind
    if begin.startswith(b"PK\x03\x04"):
        if b".pkl" in begin:
            return "a PyTorch checkpoint: expected safetensors or GGUF"
        return "an archive of numpy" if b".npy" in begin else "a zip archive: unpack it"
    if begin[257:262] == b"ustar":
        return "a tar archive: unpack it"
    if begin[4:8] in _OTHER_MODELS:
        return f"a model of {_OTHER_MODELS[begin[4:8]]}: expected ONNX"
    if begin[8:9] == b"{" and 2 <= int.from_bytes(begin[:8], "little") < 1 << 40:
        return "a safetensors file: expected the folder of its config.json"
    text = begin.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.lower().startswith(_PAGES):
        return "a web page: the download has failed, or needs a login"
    if text.startswith((b"<?xml", b"<Error")):
        return "XML, as errors of object stores are"
    if text.startswith((b"{", b"[")):
        return "JSON"
    # A model's ir_version, and then its producer or its graph.
    if begin[:1] == b"\x08" and begin[1:2] < b"\x20" and begin[2:3] in (b"\x12", b"\x1a", b"\x3a", b"\x22"):
        return "an ONNX model: expected a name that ends with .onnx"
    if not begin.strip(b"\0"):
        return "a file of zeros, as a download that was reserved and not filled is"
    try:
        begin[:512].decode()
    except UnicodeDecodeError:
        return ""
    return "text" if begin[:512].decode().isprintable() or b"\n" in begin[:512] else ""


def text_of(path: Path) -> str:
    """The text of a file. Raises KvCacheError "source_missing" and "source_damaged"."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise KvCacheError(f"there is no {path.name} in {path.parent}", "source_missing") from error
    except UnicodeDecodeError as error:
        raise KvCacheError(f"{path} is no text: {error}{probably(path)}", "source_damaged") from error


def json_of(path: Path) -> dict[str, Any]:
    """The object in a file of JSON. Raises what `text_of` raises."""
    try:
        value = json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise KvCacheError(f"{path} is no JSON: {error}{probably(path)}", "source_damaged") from error
    if not isinstance(value, dict):
        raise KvCacheError(f"{path} has a {type(value).__name__}, expected an object", "source_damaged")
    return value
