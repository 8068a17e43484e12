"""Three ragged steps on one cache, and the runs of an export over them."""

from __future__ import annotations

import numpy as np
import onnxruntime
from kvcache_pmx import lower
from onnx import ModelProto, helper, numpy_helper

from kvcache import ELEMENT_TYPES, cache_shape, create_session
from node import quiet_options
from pmx_numpy import run_export
from pmx_params import Params
from setting import RaggedCache

# The sequences of each step, by number, how many tokens each gets, and how many of them decode: prompts, one of a
# single token; a long prompt beside decoding ones and one that has no token; chunks of prompts beside decoding ones.
STEPS = [([0, 1, 2], [5, 1, 3], 0), ([1, 0, 2, 3], [1, 1, 0, 7], 2), ([3, 0, 2, 1], [1, 1, 4, 2], 2)]


class Steps:
    """The inputs of the steps, and the memory that the steps share."""

    def __init__(self, params: Params, seed: int = 3, steps: list = STEPS) -> None:
        self.element = params.element
        random = np.random.default_rng(seed)
        ragged = RaggedCache(random, [9, 8, 9, 10], params.page_size if params.cache_mode else None)
        self.inputs = [self._inputs(params, random, ragged, *step) for step in steps]
        axes = dict(num_layer=params.num_layers, num_heads=params.num_kv_heads, max_t=ragged.max_t)
        shape = cache_shape(params.cache_layout, **axes, last=params.head_dim)
        self.cache = np.zeros(shape, np.int8 if params.cache_quant_bit else params.element)
        self.scale = None
        if params.cache_quant_bit:
            groups = params.head_dim // params.cache_quant_group
            self.scale = np.zeros(cache_shape(params.cache_layout, **axes, last=groups), params.element)

    @staticmethod
    def _inputs(
        params: Params, random: np.random.Generator, ragged: RaggedCache, members: list, seqlens: list, decoding: int
    ) -> dict[str, np.ndarray]:
        step = ragged.step(random, members, seqlens)
        step["max_seqlen"], step["max_kvlen"] = step["max_seqlen"].reshape(1), step["max_kvlen"].reshape(1)
        step["token_ids"] = random.integers(0, params.vocab_size, sum(seqlens))
        step["decoding_batches"] = np.array([decoding])
        step["attn_mask"] = np.zeros(0, params.element)
        return step

    def with_masks(self, params: Params, rank: int = 2, *, causal: bool = False) -> Steps:
        """The steps with a mask each: random values, or causal blocks as a caller gives them without auto_causal."""
        random = np.random.default_rng(11)
        for step in self.inputs:
            tokens, keys = int(step["seqstarts"][-1]), int(step["kvstarts"][-1])
            columns = -(-keys // 16) * 16  # the exporter's own padding
            shape = (tokens, columns) if rank == 2 else (params.num_heads, tokens, columns)
            mask = np.zeros(shape) if causal else random.standard_normal(shape)
            for b in range(len(step["start_pos"])) if causal else ():
                rows = slice(*step["seqstarts"][b : b + 2])
                keys_of = slice(*step["kvstarts"][b : b + 2])
                n, m = rows.stop - rows.start, keys_of.stop - keys_of.start
                mask[..., rows, keys_of] = np.where(np.tri(n, m, m - n) == 1, 0.0, -np.inf)
            step["attn_mask"] = mask.astype(params.element)
        return self

    def expected(self, export: ModelProto) -> list[np.ndarray]:
        """The logits of the export in numpy; afterwards `cache` and `scale` are what it has stored."""
        return [run_export(export, step | self.memory(self.cache, self.scale)) for step in self.inputs]

    def memory(self, cache: np.ndarray, scale: np.ndarray | None) -> dict[str, np.ndarray]:
        """By the names of the exports' inputs."""
        return {"kv_cache": cache, "kv_scale": scale, "kv_scale.1": np.zeros(0, cache.dtype)}

    def run(
        self, model: ModelProto, options: onnxruntime.SessionOptions | None = None
    ) -> tuple[list[np.ndarray], np.ndarray, np.ndarray | None]:
        """The logits of the lowered model, and what it has stored in the caller's own arrays."""
        session = create_session(model.SerializeToString(), options or quiet_options())
        cache, scale = np.zeros_like(self.cache), None if self.scale is None else np.zeros_like(self.scale)
        memory = self.memory(cache, scale)
        names = [value.name for value in session.get_inputs()]
        logits = []
        for step in self.inputs:
            fed = step | memory
            logits += session.run(None, {name: fed[name] for name in names})
        return logits, cache, scale


ELEMENT_TYPES = ELEMENT_TYPES | {np.dtype(np.int32): 6}


def node_model(
    op_type: str,
    inputs: dict[str, np.ndarray],
    attributes: dict[str, object],
    outputs: list[str],
    *,
    domain: str = "opmx",
    weights: tuple[str, ...] = (),
) -> ModelProto:
    """The node named /it in the exporter's opset; `weights` are initializers, the other inputs graph inputs."""
    node = helper.make_node(op_type, list(inputs), outputs, "/it", domain=domain, **attributes)
    given = [
        helper.make_tensor_value_info(name, ELEMENT_TYPES[x.dtype], [f"{name}_{axis}" for axis in range(x.ndim)])
        for name, x in inputs.items()
        if name and name not in weights
    ]
    # Their types are the runtime's to infer.
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    held = [numpy_helper.from_array(inputs[name], name) for name in weights]
    graph = helper.make_graph([node], "graph", given, results, held)
    opsets = [helper.make_opsetid("", 11), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, ir_version=6, opset_imports=opsets)


def run_node(
    op_type: str,
    inputs: dict[str, np.ndarray],
    outputs: int = 1,
    *,
    domain: str = "opmx",
    weights: tuple[str, ...] = (),
    **attributes: object,
) -> list[np.ndarray]:
    """The results of the lowered node."""
    names = [f"y{i}" for i in range(outputs)]
    model = lower(node_model(op_type, inputs, attributes, names, domain=domain, weights=weights))
    session = create_session(model.SerializeToString(), quiet_options())
    return session.run(None, {name: x for name, x in inputs.items() if name and name not in weights})
