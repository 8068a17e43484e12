"""ONNX exports: a graph with ONNX Runtime's attention, its data, genai_config.json or config.json, a tokenizer.

The graph gets our attention and our products with quantized matrices, whose weights are written anew, and loses its
pasts, presents and masks; other weights stay where they are:

    find the attention nodes; settle what depends on a sequence's length
    write ours in their place; gather the rows of logits before the head; write products
    keep what the logits need; refuse what then still needs an input that is gone
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, inliner

from kvcache_ops._errors import KvCacheError
from kvcache_ops._model_cache import digest
from kvcache_ops.models._checkpoint import check_tokenizer
from kvcache_ops.models._config import rotary
from kvcache_ops.models._decoder import INDICES, graph_inputs
from kvcache_ops.models._folder_tokenizer import of_chats, tokenizer_of
from kvcache_ops.models._graph_reader import (
    LengthChoice,
    Values,
    all_nodes,
    all_tensors,
    bytes_of,
    called,
    check_texts,
    rename,
    shape_of,
    sort,
    unsupported,
)
from kvcache_ops.models._graph_writer import MICROSOFT
from kvcache_ops.models._layer_groups import LayerGroups
from kvcache_ops.models._onnx_attention import INPUTS, Attention, Replacement, Rotation
from kvcache_ops.models._onnx_products import Products
from kvcache_ops.models._onnx_values import check_values
from kvcache_ops.models._source_files import json_of, probably
from kvcache_ops.ops._cache_spec import T1, CacheSpec
from kvcache_ops.ops._nodes import DOMAIN
from kvcache_ops.ops._quantized import OWN_DOMAIN

GENAI = "genai_config.json"
_CONFIG = "config.json"
_OURS = ("token_ids", "positions", *INDICES, "logit_rows", "cache", "scale")
_OF_A_GROUP = re.compile(r"(cachestarts|cache|scale)\.\d+")  # as LayerGroups names them
_REMEDY = (
    "export the model with `python -m onnxruntime_genai.models.builder -e cpu`, or build from its checkpoint, a GGUF "
    "file or a folder of safetensors"
)
_LAST = "num_logits_to_keep"  # an input that says of how many last tokens the logits are; 0 are all
# What the head's result may go through: each logit by itself.
_ELEMENTWISE = ("Add", "Cast", "Clip", "Div", "Identity", "Max", "Min", "Mul", "Neg", "Sub", "Tanh", "Where")


@dataclass(frozen=True)
class GraphConfig:
    """What a graph and its configuration say about a model; a `Config` says more, which a graph has in its nodes.

    `inv_freq`: as in Config, of as many pairs as are rotated; none where layers differ. `interleaved`: pairs are
    neighbors. `windows`: how many tokens a query of each layer sees, its own included; None for all. `window` is None:
    the nodes hide keys outside of it.
    """

    family: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    inv_freq: tuple[float, ...]
    interleaved: bool
    windows: tuple[int | None, ...]
    window: None = None


class Export:
    """An export that can be built: everything about it is checked, and nothing is written."""

    def __init__(self, path: Path, rope: str, context: int | None) -> None:
        about = self._about = described_by(path)
        self._said, genai = _description(about)
        self._genai = _section(genai, "model")
        self._decoder = _section(self._genai, "decoder")
        for part, of in (("encoder", self._genai), ("pipeline", self._decoder)):
            if of.get(part):
                raise unsupported(f"{about / GENAI} has {part}, expected a decoder of one graph alone")
        self._file = _graph_of(path, self._decoder.get("filename"))
        self._folder = folder = self._file.parent
        self._bytes, self.model = _load(self._file)
        self._data = _data_files(self.model, folder)
        self._names = self._renamed()
        self._values = Values(self.model.graph, folder)
        self.notes: list[str] = []
        self._products: Products | None = None
        settled = self._settle(genai, rope, context)
        self._attentions = self._find_attention()
        if not genai:
            raise KvCacheError(f"there is no {GENAI} and no {_CONFIG} in {about}: {_REMEDY}", "source_missing")
        self.dtype, self.config = self._type(), self._config(*settled, context)
        self._rope = self.notes[0] if self.notes else ""
        self.tokenizer, self.name = tokenizer_of(about, self.config.vocab_size), about.resolve().name
        eos = self._genai.get("eos_token_id")
        self.bos, self.stops, self.chat_template = of_chats(about, eos, self.tokenizer)
        check_tokenizer(self.tokenizer, self.stops, self.config.vocab_size)
        for warning in self._contradictions():
            warnings.warn(warning, stacklevel=4)

    def lies_in(self, folder: Path) -> bool:
        """Whether its graph or its configuration is in this folder."""
        return folder.resolve() in (self._folder.resolve(), self._about.resolve())

    def _renamed(self) -> dict[str, str]:
        """Frees the names that the new graph's inputs and outputs have; what the export's are called now."""
        graph, wanted = self.model.graph, _section(self._decoder, "outputs").get("logits", "logits")
        if all(value.name != wanted for value in graph.output):
            raise unsupported(f"{self._file} has no output {wanted}: {_REMEDY}")
        every = {name for node in all_nodes(graph.node) for name in (*node.input, *node.output)}
        taken = [name for name in every if _OF_A_GROUP.fullmatch(name)]
        names = {name: f"export/{name}" for name in (*_OURS, *taken, "attn_mask", "logits", wanted)}
        rename(graph, names)
        inputs = _section(self._decoder, "inputs")
        kinds = ("input_ids", "attention_mask", "position_ids", "block_table", "logits_indices", _LAST)
        found = {kind: str(inputs.get(kind, kind)) for kind in kinds} | {"logits": str(wanted)}
        return {kind: names.get(name, name) for kind, name in found.items()}

    def _settle(self, genai: dict[str, Any], rope: str, context: int | None) -> tuple[int, str]:
        """Replaces `If`s by length with the branch for the context; returns the greatest context, and its source."""
        declared = _whole(self._genai, "context_length", self._said) if genai else 1
        block = _section(_section(genai, "engine"), "dynamic_batching").get("block_size", 256)
        choice = LengthChoice(self.model, self._values, partial(_fed, self._names, block))
        first, last = choice.at(1), choice.at(declared)
        if first == last and rope != "auto":
            raise KvCacheError(f"rope is {rope!r}, expected auto: the graph has no choice by length", "option_unknown")
        wanted = choice.at(min(context or declared, declared))
        short = first != last and (rope == "short" or (rope == "auto" and wanted == first))
        most, why = declared, f"the context of {self._said}"
        if first != last:
            limit = choice.last_like_first(declared)
            most = limit if short else declared
            kind, side = ("short", "up to") if short else ("long", "above")
            why = f"the {kind} rotary factors, which are for contexts {side} {limit}"
            self.notes.append(f"rope: {why}")
        choice.settle(1 if short else declared)
        self._values = Values(self.model.graph, self._folder)
        return most, why

    def _find_attention(self) -> list[Attention]:
        """The attention nodes, one for a layer, all of one size."""
        values = self._values
        places, _ = values.needed([self._names["logits"]])
        live = [values.nodes[place] for place in sorted(places)]
        every = [node for node in all_nodes(live) if "Attention" in node.op_type]
        kinds = {node.op_type for node in every}
        if len(kinds) > 1:
            raise unsupported(f"the graph has {' and '.join(sorted(kinds))}, expected one kind of attention: {_REMEDY}")
        outside = sum("Attention" in node.op_type for node in live)
        if not kinds & INPUTS.keys() or outside != len(every):
            got = next(iter(kinds), "by MatMul and Softmax, or there is none")
            got += " in an inner graph" if outside != len(every) else ""
            message = f"attention of {self._file} is {got}, expected {' or '.join(INPUTS)} of com.microsoft"
            raise unsupported(f"{message}: {_REMEDY}")
        found = [Attention(node, values) for node in live if node.op_type in kinds]
        pasts = [attention.inputs["past_key"] for attention in found]
        for past in pasts:
            if pasts.count(past) > 1:
                raise unsupported(f"{past} is the past of {pasts.count(past)} nodes, expected a past for each")
        first = found[0]
        for other in found:
            if (other.heads, other.head_dim()) != (first.heads, first.head_dim()):
                sizes = [f"{called(a.node)} has heads {a.heads} of {a.head_dim()}" for a in (first, other)]
                raise unsupported(f"{', '.join(sizes)}: expected one size in all layers")
        return found

    def _type(self) -> T1:
        types = {self._values.inputs[a.inputs["past_key"]].type.tensor_type.elem_type for a in self._attentions}
        known: dict[int, T1] = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}
        if len(types) > 1 or not types <= known.keys():
            got = ", ".join(TensorProto.DataType.Name(kind) for kind in sorted(types))
            raise unsupported(f"keys and values have the type {got}, expected FLOAT or FLOAT16: {_REMEDY}")
        return known[types.pop()]

    def _config(self, most: int, why: str, context: int | None) -> GraphConfig:
        attentions, decoder = self._attentions, self._decoder
        (heads, kv_heads), head_dim = attentions[0].heads, attentions[0].head_dim()
        head_dim = head_dim or _whole(decoder, "head_size", self._said)
        tables = {attention.rotation for attention in attentions}
        names = {rotation.cos for rotation in tables if rotation is not None}
        names |= {name for node in self._values.nodes if node.op_type == "RotaryEmbedding" for name in node.input[2:3]}
        for name in names:
            table = self._values.constant(name)
            if table is not None and len(table.dims) == 2 and table.dims[0] < most:
                warnings.warn(f"{name} has {table.dims[0]} rows, fewer than {most}, {why}", stacklevel=5)
                most, why = table.dims[0], f"the rows of {name}"
        if context is not None and not 1 <= context <= most:
            raise KvCacheError(f"context is {context}, expected 1 to {most}, {why}", "context_range")
        logits = next(value for value in self._values.graph.output if value.name == self._names["logits"])
        vocab_size = (shape_of(logits) or [None])[-1]
        angles = [_frequencies(rotation, self._values) if rotation is not None else () for rotation in tables]
        return GraphConfig(
            family=str(self._genai.get("type", "")),
            num_layers=len(attentions),
            hidden=_whole(decoder, "hidden_size", self._said),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=vocab_size or _whole(self._genai, "vocab_size", self._said),
            context_length=context or most,
            inv_freq=angles[0] if len(tables) == 1 else (),
            interleaved=any(rotation is not None and rotation.interleaved for rotation in tables),
            windows=tuple(attention.window for attention in attentions),
        )

    def _contradictions(self) -> list[str]:
        """Where the export's configurations contradict its graph."""
        config, decoder = self.config, self._decoder
        graph = {"num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads}
        graph |= {"num_hidden_layers": config.num_layers, "head_size": config.head_dim}
        found = [
            f"{self._said} says {name} {decoder[name]}, the graph has {number}, which counts"
            for name, number in graph.items()
            if decoder.get(name, number) != number
        ]
        sources = [(GENAI, _windows_of_genai(decoder, config.num_layers))]
        if (self._about / _CONFIG).is_file():
            given = _config_of_text(self._about)
            sources.append((_CONFIG, _windows_of_config(given, config.num_layers)))
            if (rope := _other_rotation(given, config)) is not None:
                found.append(f"{_CONFIG} says {rope}, the graph rotates by other angles, which count")
        for source, windows in sources:
            context = config.context_length
            pairs = enumerate(zip(windows, config.windows))
            differ = [i for i, (said, has) in pairs if min(said or context, context) != min(has or context, context)]
            if differ:
                i = differ[0]
                said, has = f"sliding_window {windows[i]}", f"local_window_size {config.windows[i] or -1}"
                message = f"{source} says {said} of layer {i}, the graph has {has}, which counts"
                found.append(
                    f"{message}; so in {len(differ)} layers: beyond a window, answers are not the checkpoint's"
                )
        return found

    def rewrite(self, spec: CacheSpec, groups: LayerGroups, kind: str, activations: str | None) -> None:
        """Turns `model` into a graph over caches of `spec`, one for each group of layers; only once.

        activations: of our products; with None those of the export stay.
        """
        values, names, graph = self._values, self._names, self.model.graph
        paged = self._attentions[0].node.op_type == "PagedAttention"
        write = Replacement(values, spec, groups, kind, paged, names["position_ids"])
        replaced: dict[str, list[NodeProto]] = {}
        for layer, attention in enumerate(self._attentions):
            replaced[attention.node.output[0]] = write.attention(attention, layer)
        for node in values.nodes:
            if (node.op_type, node.domain) == ("RotaryEmbedding", "com.microsoft"):
                if node.input[1:2] == [names["position_ids"]]:
                    replaced[node.output[0]] = write.rotary(node)
        head, gather = self._head(write)
        replaced[head.output[0]] = [*gather, head]
        nodes = self._prelude(write)
        for node in values.nodes:
            nodes.extend(replaced.pop(next(iter(node.output), ""), [node]))
        if activations is not None:
            self._products = Products(values, activations)
            quantized = ("MatMulNBits", MICROSOFT)
            nodes = [
                made
                for node in nodes
                for made in (self._products.product(node) if (node.op_type, node.domain) == quantized else [node])
            ]
            graph.initializer.extend(self._products.initializers)
        by_rows = write.constant("logits_shape", np.array([-1, self.config.vocab_size]))
        rows = helper.make_node("Reshape", [names["logits"], by_rows], ["kvcache/logits"])
        nodes += [rows, helper.make_node("Cast", ["kvcache/logits"], ["logits"], to=TensorProto.FLOAT)]
        mine = {name for node in nodes for name in node.output}
        inputs = [value for value in graph.input if value.name not in mine]
        for field, entries in (("node", nodes), ("input", inputs), ("output", [])):
            graph.ClearField(field)
            getattr(graph, field).extend(entries)
        ours = [helper.make_tensor_value_info(*value) for value in graph_inputs(spec, groups, masked=False)]
        self._check(finished := Values(graph, self._folder), {value.name for value in ours})
        finished.only(["logits"])
        graph.input.extend(ours)
        shape: list[str | int] = ["R", self.config.vocab_size]
        graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape))
        for domain in (DOMAIN, MICROSOFT, OWN_DOMAIN):
            if all(opset.domain != domain for opset in self.model.opset_import):
                self.model.opset_import.append(helper.make_opsetid(domain, 1))

    def _prelude(self, write: Replacement) -> list[NodeProto]:
        """The export's inputs, from the step's: as a batch of one, or in a row, as the export has them."""
        nodes = []
        taken_by = {"input_ids": "token_ids", "position_ids": "positions", "logits_indices": "logit_rows", _LAST: ""}
        for kind, ours in taken_by.items():
            value = self._values.inputs.get(self._names[kind])
            if value is None:
                continue
            rank, taken = len(value.type.tensor_type.shape.dim), ours
            if kind == _LAST:
                taken = write.constant("every_row", np.zeros([1] * rank, np.int64))
            elif rank == 2:
                taken = f"kvcache/{kind}"
                nodes.append(helper.make_node("Unsqueeze", [ours, write.constant("batch", np.array([0]))], [taken]))
            elif rank != 1:
                raise unsupported(f"{value.name} has {rank} axes, expected (batch, sequence) or (tokens)")
            nodes.append(helper.make_node("Cast", [taken], [value.name], to=value.type.tensor_type.elem_type))
        return nodes

    def _head(self, write: Replacement) -> tuple[NodeProto, list[NodeProto]]:
        """The product that gives the logits, and the node that gathers its rows, unless the export gathers them."""
        values, name = self._values, self._names["logits"]
        while True:
            node = values.maker(name)
            data = [] if node is None else [i for i, x in enumerate(node.input) if x and values.inputs_of(x)]
            if node is not None and data == [0] and (node.op_type.startswith("MatMul") or node.op_type == "Gemm"):
                break
            if node is None or len(data) != 1 or node.op_type not in _ELEMENTWISE:
                got = "no node" if node is None else called(node)
                raise unsupported(f"the logits come from {got}, expected a MatMul, and what scales or caps its result")
            name = node.input[data[0]]
        if self._names["logits_indices"] in values.inputs_of(node.input[0]):
            return node, []
        name = hidden = node.input[0]
        while (last := values.maker(name)) is not None:
            if self._prunes(last):
                hidden = last.input[0]
            elif last.op_type not in ("Unsqueeze", "Squeeze", "Reshape", "Identity"):
                break
            name = last.input[0]
        node.input[0] = "kvcache/logit_rows"
        return node, [helper.make_node("Gather", [hidden, "logit_rows"], ["kvcache/logit_rows"], axis=-2)]

    def _prunes(self, node: NodeProto) -> bool:
        """Whether a node before the head takes the same tokens' rows in every run, as the last one's."""
        values = self._values
        if node.op_type not in ("Gather", "Slice") or any(values.inputs_of(name) for name in node.input[1:]):
            return False
        axes = values.constant(node.input[3]) if node.op_type == "Slice" and len(node.input) > 3 else None
        return axes is None or not {-1, 2}.issuperset(values.array(axes).flat)  # of (batch, sequence, hidden)

    def _check(self, finished: Values, ours: set[str]) -> None:
        """Refuses a graph whose logits need a removed input, or a node that sees all tokens as one sequence."""
        places, leaves = finished.needed(["logits"])
        left = leaves - {tensor.name for tensor in finished.graph.initializer} - ours
        for name in sorted(left):
            reader = called(finished.reader(name, places))
            what = "inputs of tokens and positions alone" if name in finished.inputs else "a node that computes it"
            raise unsupported(f"{reader} needs {name}, not for attention alone; expected {what}: {_REMEDY}")
        for node in (finished.nodes[place] for place in sorted(places)):
            counts = node.op_type in ("Range", "CumSum")
            if counts or node.op_type.startswith("Reduce"):
                of = finished.needed(node.output)[1] & ours
                if (counts and of) or of == {"positions"}:
                    raise unsupported(
                        f"{called(node)} takes a step's tokens for one sequence, expected none: {_REMEDY}"
                    )

    def link(self, path: Path, progress: Callable[[int, int], None] | None) -> dict[str, Any]:
        """Puts the data beside the new model, as hard links or else copies. Returns what `load` checks."""
        made = () if self._products is None else self._products.initializers
        check_values(self.model.graph, self._folder, {tensor.name for tensor in made})
        entries = [entry for tensor in all_tensors(self.model.graph) for entry in tensor.external_data]
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
                self.notes.append(f"weights: {_linked(source, Path(place))} {source}")
            else:
                path.touch()  # all of it is in the model
            linked.append(LinkedFile.of(Path(place)))
            if progress is not None:
                progress(len(linked), len(places) + 1)
        if self._products is not None and self._products.initializers:
            panels = Path(f"{path}.panels")
            self._products.write(panels, {tensor.name: tensor for tensor in self.model.graph.initializer})
            linked.append(LinkedFile.of(panels))
        if progress is not None:
            progress(len(places) + 1, len(places) + 1)
        activations = self._products.activations if self._products else ""
        parts = [self._bytes, f"{self._rope}{activations}".encode(), *(file.sha256.encode() for file in linked)]
        digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts))
        return {"linked": [asdict(file) for file in linked], "fingerprint": digest.hexdigest(), "notes": self.notes}


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


def is_export(path: Path) -> bool:
    """Whether this is a folder with an ONNX model of others, or its file."""
    if path.is_file():
        return path.suffix == ".onnx"
    return (path / GENAI).is_file() or (bool(graphs(path)) and not any(path.glob("*.safetensors")))


def graphs(folder: Path) -> list[Path]:
    """The ONNX files of a folder, or, as on the Hugging Face Hub, of the folder onnx in it."""
    return sorted(folder.glob("*.onnx")) or sorted(folder.glob("onnx/*.onnx"))


def _graph_of(path: Path, named: Any) -> Path:
    """The file of the graph: this one; the one that genai_config.json names; the only one."""
    if path.is_file():
        return path
    if named is not None:
        if not isinstance(named, str):
            raise KvCacheError(f"filename is {named!r} in {GENAI}, expected a text", "config_type")
        if _leads_out(named):
            raise KvCacheError(f"filename is {named!r} in {GENAI}, expected a file in {path}", "config_range")
        return path / named
    found = graphs(path)
    if len(found) > 1:
        names = ", ".join(str(file.relative_to(path)) for file in found)
        raise KvCacheError(f"{path} has {names}: expected the path of one of them", "source_ambiguous")
    return found[0] if found else path / "model.onnx"


def described_by(path: Path) -> Path:
    """The folder of the configuration and the tokenizer: that of the graph, or the one around a folder onnx."""
    folder = path if path.is_dir() else path.parent
    place = folder.absolute()
    here = (folder / GENAI).is_file() or (folder / _CONFIG).is_file()
    return place.parent if not here and place.name == "onnx" and (place.parent / _CONFIG).is_file() else folder


def _description(folder: Path) -> tuple[str, dict[str, Any]]:
    """The file that describes a model, and what is in it, in the form of genai_config.json."""
    if (folder / GENAI).is_file():
        return GENAI, json_of(folder / GENAI)
    if not (folder / _CONFIG).is_file():
        return "", {}
    given = _config_of_text(folder)
    names = {"head_size": "head_dim"} | {
        name: name for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    }
    decoder = {ours: given[name] for ours, name in names.items() if given.get(name) is not None}
    of_chatglm = "seq_length" in given and "max_position_embeddings" not in given
    about = {name: given.get(name) for name in ("vocab_size", "eos_token_id")}
    about["context_length"] = _whole(given, "seq_length" if of_chatglm else "max_position_embeddings", _CONFIG)
    return _CONFIG, {"model": about | {"type": given.get("model_type", ""), "decoder": decoder}}


def _linked(source: Path, place: Path) -> str:
    """Links a file to another, or copies it; returns which."""
    try:
        os.link(source, place)
        return "a hard link to"
    except OSError as error:  # of another file system, or another owner
        warnings.warn(f"{source} is copied, since there can be no hard link to it: {error.strerror}", stacklevel=4)
        shutil.copyfile(source, place)
        return "a copy, since no hard link was possible, of"


def _section(given: dict[str, Any], name: str) -> dict[str, Any]:
    section = given.get(name, {})
    if not isinstance(section, dict):
        raise KvCacheError(f"{name} is {section!r:.80} in {GENAI}, expected an object", "config_type")
    return section


def _whole(section: dict[str, Any], name: str, said: str) -> int:
    number = section.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        wrong = "config_missing" if number is None else "config_type"
        raise KvCacheError(f"{name} is {number!r} in {said}, expected a whole number from 1", wrong)
    return number


def _load(file: Path) -> tuple[bytes, ModelProto]:
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


def _data_files(model: ModelProto, folder: Path) -> list[str]:
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


def _fed(names: dict[str, str], block: int, value: ValueInfoProto, length: int) -> NDArray[Any] | None:
    """An input's value for a sequence of `length` tokens, if that determines it."""
    kinds = {name: kind for kind, name in names.items()}
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    row = {
        "attention_mask": np.ones(length),
        "input_ids": np.zeros(length),
        "position_ids": np.arange(length),
        "block_table": np.zeros(-(-length // block)),
    }.get(kinds.get(value.name, ""))
    if row is None:
        return None
    return row.astype(dtype).reshape([1] * (len(value.type.tensor_type.shape.dim) - 1) + [-1])


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
        raise unsupported(f"{rotation.cos} has no angles that grow by the same from row to row: {_REMEDY}")
    return tuple(angles.tolist())


def _config_of_text(folder: Path) -> dict[str, Any]:
    """config.json, of a model of images and texts the part of texts."""
    given = json_of(folder / _CONFIG)
    return given | (text if isinstance(text := given.get("text_config"), dict) else {})


def _other_rotation(given: dict[str, Any], config: GraphConfig) -> str | None:
    """The rotary embedding in config.json, if the graph has another one in all layers."""
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    base = rope.get("rope_theta", given.get("rope_theta")) if isinstance(rope, dict) else None
    if base is None or not config.inv_freq:
        return None
    try:
        said, _ = rotary(2 * len(config.inv_freq), base, rope, config.context_length)
    except KvCacheError:  # a kind that depends on a sequence's length, or that is not known
        return None
    apart = np.abs(np.subtract(said, config.inv_freq)) - np.divide(said, 100)
    return f"rope_theta {base} and rope_scaling {rope}" if apart.max() * config.context_length > 0.05 else None


def _windows_of_genai(decoder: dict[str, Any], layers: int) -> list[int | None]:
    """The windows of layers by genai_config.json, if it says any."""
    given = decoder.get("sliding_window")
    if not isinstance(given, dict) or not isinstance(window := given.get("window_size"), int):
        return []
    local = given.get("layers")
    if not isinstance(local, list) or not local:  # the builder did not find out which
        return [window] * layers
    return [window if i in local else None for i in range(layers)]


def _windows_of_config(given: dict[str, Any], layers: int) -> list[int | None]:
    """The windows of layers by config.json, as transformers reads it."""

    def number(name: str, default: int) -> int:
        value = given.get(name)
        return value if isinstance(value, int) and value > 0 else default

    window, kind = given.get("sliding_window"), str(given.get("model_type", ""))
    used = given.get("use_sliding_window", not kind.startswith("qwen"))
    if not isinstance(window, int) or not used:
        return [None] * layers
    types = given.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        local = [kind == "sliding_attention" for kind in types]
    elif kind.startswith(("gemma2", "gemma3")):
        pattern = number("sliding_window_pattern", 2 if kind == "gemma2" else 6)
        local = [(i + 1) % pattern != 0 for i in range(layers)]
    else:
        local = [i >= number("max_window_layers", 0) for i in range(layers)]
    return [window if here else None for here in local]
