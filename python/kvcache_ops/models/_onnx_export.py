"""ONNX exports: a graph with ONNX Runtime's attention, its data, genai_config.json or config.json, a tokenizer."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kvcache_ops._errors import KvCacheError
from kvcache_ops.models._checkpoint import check_tokenizer
from kvcache_ops.models._folder_tokenizer import of_chats, tokenizer_of
from kvcache_ops.models._graph_reader import REMEDY, Values, all_tensors, shape_of, unsupported
from kvcache_ops.models._onnx_attention import Rotation
from kvcache_ops.models._onnx_config import GraphConfig, contradictions, description, section, whole
from kvcache_ops.models._onnx_files import (
    CONFIG,
    GENAI,
    LinkedFile,
    check_values,
    data_files,
    described_by,
    graph_of,
    link_file,
    load_graph,
)
from kvcache_ops.models._onnx_graph import ExportGraph


class Export:
    """An export that can be built: everything about it is checked, and nothing is written. `graph` rewrites itself."""

    def __init__(self, path: Path, rope: str, context: int | None) -> None:
        about = self._about = described_by(path)
        self._said, genai = description(about)
        self._genai = section(genai, "model")
        decoder = self._decoder = section(self._genai, "decoder")
        for part, of in (("encoder", self._genai), ("pipeline", decoder)):
            if of.get(part):
                raise unsupported(f"{about / GENAI} has {part}, expected a decoder of one graph alone")
        file = graph_of(path, decoder.get("filename"))
        self._folder = file.parent
        self._bytes, model = load_graph(file)
        self._data = data_files(model, self._folder)
        self.graph = ExportGraph(file, model, section(decoder, "inputs"), section(decoder, "outputs"))
        declared = whole(self._genai, "context_length", self._said) if genai else 1
        block = section(section(genai, "engine"), "dynamic_batching").get("block_size", 256)
        most, chosen = self.graph.settle(declared, block, rope, context)
        self._rope = f"rope: {chosen}" if chosen else ""
        self.notes = [self._rope] if chosen else []
        self.graph.find_attention()
        if not genai:
            raise KvCacheError(f"there is no {GENAI} and no {CONFIG} in {about}: {REMEDY}", "source_missing")
        self.dtype = self.graph.element_type()
        self.config = self._config(most, chosen or f"the context of {self._said}", context)
        self.tokenizer, self.name = tokenizer_of(about, self.config.vocab_size), about.resolve().name
        eos = self._genai.get("eos_token_id")
        self.bos, self.stops, self.chat_template = of_chats(about, eos, self.tokenizer)
        check_tokenizer(self.tokenizer, self.stops, self.config.vocab_size)
        for warning in contradictions(self.config, decoder, self._said, about):
            warnings.warn(warning, stacklevel=4)

    def lies_in(self, folder: Path) -> bool:
        """Whether its graph or its configuration is in this folder."""
        return folder.resolve() in (self._folder.resolve(), self._about.resolve())

    def _config(self, most: int, why: str, context: int | None) -> GraphConfig:
        graph, decoder = self.graph, self._decoder
        attentions, values = graph.attentions, graph.values
        (heads, kv_heads), head_dim = attentions[0].heads, attentions[0].head_dim()
        head_dim = head_dim or whole(decoder, "head_size", self._said)
        tables = {attention.rotation for attention in attentions}
        names = {rotation.cos for rotation in tables if rotation is not None}
        names |= {name for node in values.nodes if node.op_type == "RotaryEmbedding" for name in node.input[2:3]}
        for name in names:
            table = values.constant(name)
            if table is not None and len(table.dims) == 2 and table.dims[0] < most:
                warnings.warn(f"{name} has {table.dims[0]} rows, fewer than {most}, {why}", stacklevel=5)
                most, why = table.dims[0], f"the rows of {name}"
        if context is not None and not 1 <= context <= most:
            raise KvCacheError(f"context is {context}, expected 1 to {most}, {why}", "context_range")
        vocab_size = (shape_of(graph.logits) or [None])[-1]
        angles = [_frequencies(rotation, values) if rotation is not None else () for rotation in tables]
        return GraphConfig(
            family=str(self._genai.get("type", "")),
            num_layers=len(attentions),
            hidden=whole(decoder, "hidden_size", self._said),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=vocab_size or whole(self._genai, "vocab_size", self._said),
            context_length=context or most,
            inv_freq=angles[0] if len(tables) == 1 else (),
            interleaved=any(rotation is not None and rotation.interleaved for rotation in tables),
            windows=tuple(attention.window for attention in attentions),
        )

    def link(self, path: Path, progress: Callable[[int, int], None] | None) -> dict[str, Any]:
        """Puts the data beside the new model, as hard links or else copies. Returns what `load` checks."""
        graph, products = self.graph.model.graph, self.graph.products
        made = [] if products is None else products.initializers
        check_values(graph, self._folder, {tensor.name for tensor in made})
        entries = [entry for tensor in all_tensors(graph) for entry in tensor.external_data]
        entries = [entry for entry in entries if entry.key == "location"]
        read = {entry.value for entry in entries}
        data = [location for location in self._data if location in read]
        places = {location: f"{path}.{i}" if i else str(path) for i, location in enumerate(data)}
        for entry in entries:
            entry.value = Path(places[entry.value]).name
        linked = []
        for location, place in (places or {"": str(path)}).items():
            source = (self._folder / location).resolve()
            if location:
                self.notes.append(f"weights: {link_file(source, Path(place))} {source}")
            else:
                path.touch()  # all of it is in the model
            linked.append(LinkedFile.of(Path(place)))
            if progress is not None:
                progress(len(linked), len(places) + 1)
        if products is not None and made:
            panels = Path(f"{path}.panels")
            products.write(panels, {tensor.name: tensor for tensor in graph.initializer})
            linked.append(LinkedFile.of(panels))
        if progress is not None:
            progress(len(places) + 1, len(places) + 1)
        activations = products.activations if products else ""
        parts = [self._bytes, f"{self._rope}{activations}".encode(), *(file.sha256.encode() for file in linked)]
        digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts))
        return {"linked": [asdict(file) for file in linked], "fingerprint": digest.hexdigest(), "notes": self.notes}


def _frequencies(rotation: Rotation, values: Values) -> tuple[float, ...]:
    """The angles of neighboring positions, from tables of their cosines and sines, whatever these are scaled by.

    Angles of 1, 2, 4, ... positions, which a table has modulo a turn, make the estimate twice as exact each time. A
    table must have the multiples of these angles: exports for DirectML and WebGPU have two tables in one.
    """
    tables = [values.constant(name) for name in (rotation.cos, rotation.sin)]
    cos, sin = (values.array(table) for table in tables if table is not None)
    if cos.shape != sin.shape or cos.ndim != 2 or not cos.size:
        raise unsupported(
            f"{rotation.cos} has the shape {cos.shape} and {rotation.sin} {sin.shape}, expected one of rows"
        )
    found = np.arctan2(sin, cos, dtype=np.float64)
    angles, apart = found[min(1, len(found) - 1)], 2
    while apart < len(found):
        turns = np.round((apart * angles - found[apart]) / (2 * np.pi))
        angles, apart = found[apart] / apart + 2 * np.pi * turns / apart, 2 * apart
    rows = np.linspace(0, len(found) - 1, 100).astype(int)
    if not np.abs(np.sin((found[rows] - rows[:, None] * angles) / 2)).max() <= 0.1:  # nor NaN
        raise unsupported(f"{rotation.cos} has no angles that grow by the same from row to row: {REMEDY}")
    return tuple(angles.tolist())
