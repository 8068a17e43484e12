"""A model by its path: a built model, or a checkpoint, which is built once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from kvcache_ops import _model_cache
from kvcache_ops._errors import KvCacheError
from kvcache_ops.models._build import METADATA, MODEL, build
from kvcache_ops.models._chat_template import ChatTemplate
from kvcache_ops.models._gguf import parts
from kvcache_ops.models._model import Model, load
from kvcache_ops.models._onnx_files import described_by
from kvcache_ops.ops._cache_spec import T2


def open_model(
    path: str | os.PathLike[str],
    *,
    weights: str | None = None,
    cache: T2 | None = None,
    quant_group: int | None = None,
    rotation: bool | None = None,
    chat: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """The model of a built folder; or of a source of `build`, built into a folder of the user's cache.

    weights, cache, quant_group, rotation, chat, progress: as `build` has them. None is what a built model has, or
    `build`'s default. A built model stays in $XDG_CACHE_HOME/kvcache_ops/models, or ~/.cache, and is used again while
    the source's content does not change, of which a part is read where a file is larger than 64 MiB. A new build takes
    the place of an earlier one of the same source and options.

    Raises KvCacheError: "cache_mismatch" or "weights_mismatch" for a built model with another cache or other weights,
    and what `load` and `build` raise.
    """
    given = Path(path)
    options = {"weights": weights, "cache": cache, "quant_group": quant_group, "rotation": rotation}
    asked = {name: value for name, value in options.items() if value is not None}
    file = given if given.suffix == ".onnx" else given / MODEL
    if file.is_file() and METADATA.encode() in file.read_bytes():
        model = _for_chats(load(given)) if chat else load(given)
        kept = model.cache
        has: dict[str, object] = {"weights": model.weights, "cache": kept.cache_dtype}
        has |= {"quant_group": kept.quant_group, "rotation": kept.quant_rotation == 1}
        for name, value in asked.items():
            if has[name] not in (value, None) and (name in ("weights", "cache") or kept.quant_bit):
                message = f"{given} has {name} {has[name]}, expected {value}: build it again from its source"
                raise KvCacheError(message, "weights_mismatch" if name == "weights" else "cache_mismatch")
        return model
    if not given.exists():
        raise KvCacheError(f"there is no file or folder {given}", "source_missing")
    files, builder = _files(given), _builder()
    folder = _model_cache.folder_of(given, asked, files, builder)
    found = _built(folder)
    if found is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _model_cache.locked(folder.parent):
            found = _built(folder)  # by another process, meanwhile
            if found is None:
                shutil.rmtree(folder, ignore_errors=True)
    if found is not None:
        return _for_chats(found) if chat else found
    with _model_cache.part_in(folder.parent, f"{folder.name}.", of_cache=True) as part:
        build(given, part, chat=chat, progress=progress, **asked)  # type: ignore[arg-type]
        _model_cache.keep(part, folder, given, asked)
    return load(folder)


def _built(folder: Path) -> Model | None:
    """The model in a folder, if there is a whole one."""
    try:
        return load(folder)
    except KvCacheError:
        return None


def _for_chats(model: Model) -> Model:
    """The model, if it has a chat template that is one."""
    ChatTemplate(model)
    return model


def _files(source: Path) -> list[Path]:
    """The files that the model of a source may depend on."""
    files = parts(source)
    if source.is_dir() or source.suffix == ".onnx":
        folders = {source, source / "onnx"} if source.is_dir() else {source.parent}
        folders.add(described_by(source))
        files = sorted(path for folder in folders for path in folder.glob("*"))
    return [path for path in files if path.is_file()]


def _builder() -> bytes:
    """The builder's version: its own text."""
    return b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
