"""Three ragged steps on one cache, and the runs of an export over them."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, helper, numpy_helper

from compare import Arrays
from one_node import RaggedCache
from pmx_export import GROUP, HEAD_DIM, HEADS, PAGE, VOCABULARY, Params
from pmx_numpy import run_export
from sessions import create_session, element_type, model_of

# The sequences of each step, by number, how many tokens each gets, and how many of them decode: prompts, one of a
# single token; a long prompt beside decoding ones and one that has no token; chunks of prompts beside decoding ones.
STEPS = [([0, 1, 2], [5, 1, 3], 0), ([1, 0, 2, 3], [1, 1, 0, 7], 2), ([3, 0, 2, 1], [1, 1, 4, 2], 2)]


class Steps:
    """The inputs of the steps, and the memory that the steps share."""

    def __init__(self, params: Params, seed: int = 3) -> None:
        self.element = params.element
        random = np.random.default_rng(seed)
        ragged = RaggedCache(random, [9, 8, 9, 10], PAGE if params.cache_mode else None)
        self.inputs = [self._inputs(params, random, ragged, *step) for step in STEPS]
        shape = [ragged.max_t if axis == "max_tokens" else axis for axis in params.cache_shape]
        self.cache = np.zeros((*shape, HEAD_DIM), np.int8 if params.quant_bit else params.element)
        self.scale = np.zeros((*shape, HEAD_DIM // GROUP) if params.quant_bit else 0, params.element)

    @staticmethod
    def _inputs(
        params: Params, random: np.random.Generator, ragged: RaggedCache, members: list, seqlens: list, decoding: int
    ) -> Arrays:
        step = ragged.step(random, members, seqlens)
        step["max_seqlen"], step["max_kvlen"] = step["max_seqlen"].reshape(1), step["max_kvlen"].reshape(1)
        step["token_ids"] = random.integers(0, VOCABULARY, sum(seqlens))
        return step | dict(decoding_batches=np.array([decoding]), attn_mask=np.zeros(0, params.element))

    def with_masks(self, rank: int = 2, *, causal: bool = False) -> Steps:
        """The steps with a mask each: random values, or causal blocks as a caller gives them without auto_causal."""
        random = np.random.default_rng(11)
        for step in self.inputs:
            tokens, keys = int(step["seqstarts"][-1]), int(step["kvstarts"][-1])
            columns = -(-keys // 16) * 16  # the exporter's own padding
            shape = (tokens, columns) if rank == 2 else (HEADS, tokens, columns)
            mask = np.zeros(shape) if causal else random.standard_normal(shape)
            for b in range(len(step["start_pos"])) if causal else ():
                rows = slice(*step["seqstarts"][b : b + 2])
                keys_of = slice(*step["kvstarts"][b : b + 2])
                n, m = rows.stop - rows.start, keys_of.stop - keys_of.start
                mask[..., rows, keys_of] = np.where(np.tri(n, m, m - n) == 1, 0.0, -np.inf)
            step["attn_mask"] = mask.astype(self.element)
        return self

    def expected(self, export: ModelProto) -> list[np.ndarray]:
        """The logits of the export in numpy; afterwards `cache` and `scale` are what it has stored."""
        return [run_export(export, step | dict(kv_cache=self.cache, kv_scale=self.scale)) for step in self.inputs]

    def run(
        self, model: ModelProto, options: onnxruntime.SessionOptions | None = None
    ) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """The logits of the lowered model, and what it has stored in the caller's own arrays."""
        session = create_session(model, options)
        memory = dict(kv_cache=np.zeros_like(self.cache), kv_scale=np.zeros_like(self.scale))
        names, logits = [value.name for value in session.get_inputs()], []
        for step in self.inputs:
            logits += session.run(None, {name: (step | memory)[name] for name in names})
        return logits, *memory.values()


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
    return model_of(
        node,
        {name: element_type(x) for name, x in inputs.items()},
        shapes={name: [f"{name}_{axis}" for axis in range(x.ndim)] for name, x in inputs.items()},
        initializers=[numpy_helper.from_array(inputs[name], name) for name in weights],
        opset=11,
        ir_version=6,
    )


def break_node(random: np.random.Generator, node: NodeProto) -> None:
    """Takes something from the node, gives an attribute another type, or gives the node an output too much."""
    change = random.integers(5)
    if change == 0 and node.input:
        del node.input[random.integers(len(node.input)) :]
    elif change == 1 and node.input:
        node.input[random.integers(len(node.input))] = ""
    elif change == 2 and node.attribute:
        del node.attribute[random.integers(len(node.attribute))]
    elif change == 3 and node.attribute:
        index = random.integers(len(node.attribute))
        wrong = helper.make_attribute(node.attribute[index].name, [1.5, "text", -3, [1, 2]][random.integers(4)])
        node.attribute[index].CopyFrom(wrong)
    else:
        node.output.append(f"more_{len(node.output)}")
