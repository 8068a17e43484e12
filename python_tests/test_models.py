"""Models made from tiny checkpoints, against the same checkpoints in numpy."""

from __future__ import annotations

from pathlib import Path

import kvcache_ops.onnx  # noqa: F401, for the checker
import numpy as np
import onnx
import onnxruntime
import pytest
from kvcache_ops import models
from kvcache_ops.engine import Engine
from kvcache_ops.models._model import session_options
from onnx import helper, numpy_helper

from compare import refused
from numpy_gguf import NumpyGguf
from oracle.quantized_matmul import quantized_gather
from sessions import attributes_of
from tiny_models import EXACT, PROMPT, SIZES, TEXT, TOKENS, built, expect_near, random_tensors, write_gguf

TIED = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
APART = ["F16", "Q8_0", "Q4_1", "Q5_0", "IQ4_NL", "MXFP4"]


@pytest.mark.parametrize(("kind", "tied"), [(kind, True) for kind in TIED] + [(kind, False) for kind in APART])
def test_every_type_of_weights(tmp_path: Path, kind: str, tied: bool) -> None:
    """Codes, scales and minima lose nothing, as panels neither: what is left is the order of float32 sums.

    So it is by ONNX Runtime's products, which round no activations. Ours are proven by the golden cases; here their
    weights are, and that rounded activations do no more to logits than they may.
    """
    path = write_gguf(tmp_path / "model.gguf", kind, tensors=random_tensors(tied=tied))
    expected = NumpyGguf(path).logits(TEXT)
    exact = built(path, "exact", products="MatMulNBits", cache="float32")
    expect_near(exact.logits(), expected, 1e-5)
    if kind in TIED[:3]:
        return
    expect_near(built(path, **EXACT).logits(), expected, 1e-3)
    run = built(path, cache="float32")
    expect_near(run.logits(), expected, 0.1)
    graph = onnx.load(run.model.path).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for name, product in {"blk.1.ffn_down": "layers.1.down", "token_embd": "embedding"}.items():
        parts = {part: values for part in PARTS if (values := arrays.get(f"{product}.{part}")) is not None}
        attributes = next(attributes_of(node) for node in graph.node if f"{product}.panels" in node.input)
        weights = NumpyGguf(path).weights[f"{name}.weight"]
        found = quantized_gather(attributes, np.arange(len(weights)), **parts)
        assert np.allclose(found, weights, rtol=1e-6, atol=2e-7 * np.abs(weights).max())


PARTS = ("panels", "scales", "minima")


OTHER_HEADS = SIZES | dict(heads=6, kv_heads=3, head_dim=32)
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
CAPS = {"gemma2.attn_logit_softcapping": 5.0, "gemma2.final_logit_softcapping": 1.0}
GEMMA = {"gemma3.attention.sliding_window": 5, "gemma3.attention.scale": 0.3, "gemma3.rope.freq_base_swa": 500.0}
GEMMA |= {"gemma3.rope.freq_base": 1e6, "gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
FAMILIES = [
    ("qwen2", SIZES, {}),
    ("qwen3", OTHER_HEADS, {}),
    ("llama", SIZES, {"llama.attention.sliding_window": 4}),
    ("llama", SIZES, {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}),
    ("qwen3", SIZES, {f"qwen3.{key}": value for key, value in YARN.items()}),
    ("gemma2", SIZES, {"gemma2.attention.sliding_window": 4, **CAPS}),
    ("gemma3", SIZES | dict(layers=7), {"gemma3.attention.sliding_window": 4}),
    ("gemma3", SIZES, {**GEMMA, "gemma3.attention.sliding_window_pattern": [False, True]}),
]


@pytest.mark.parametrize(
    ("family", "sizes", "fields"),
    FAMILIES,
    ids=["qwen2", "qwen3", "window", "linear rope", "yarn", "gemma2", "gemma3", "gemma3 two"],
)
def test_families(tmp_path: Path, family: str, sizes: dict[str, int], fields: dict[str, object]) -> None:
    """Biases, norms of heads, a window, heads that are not hidden / heads wide, scaled frequencies."""
    path = write_gguf(tmp_path / "model.gguf", family=family, sizes=sizes, fields=fields)
    expected = NumpyGguf(path).logits(TEXT)
    for attention in ("fused", "packed"):
        run = built(path, attention=attention, **EXACT)
        expect_near(run.logits(), expected, 1e-5)


def with_uneven_norms(family: str, sizes: dict[str, int], apart: float) -> dict[str, np.ndarray]:
    """Random tensors whose norms make keys large where queries are small: by up to `apart`, alike in rotated pairs."""
    tensors, random = random_tensors(family, sizes=sizes), np.random.default_rng(3)
    for i in range(sizes["layers"]):
        uneven = np.tile(apart ** random.uniform(-0.5, 0.5, sizes["head_dim"] // 2), 2).astype(np.float32)
        tensors[f"blk.{i}.attn_k_norm.weight"] *= uneven
        tensors[f"blk.{i}.attn_q_norm.weight"] /= uneven
    return tensors


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_balanced_norms(tmp_path: Path, family: str) -> None:
    """Balanced, a model gives the same logits but for rounding, and an int4 cache, which is built so, loses less."""
    tensors = with_uneven_norms(family, SIZES, 30)
    tensors["blk.0.attn_k_norm.weight"][[3, 3 + 32, 5]] = 0  # a pair without keys, and half of one
    tensors["blk.1.attn_q_norm.weight"][[7, 7 + 32]] = 0
    path = write_gguf(tmp_path / "model.gguf", family=family, tensors=tensors)
    plain = built(path, **EXACT).logits()
    expect_near(built(path, balance=True, **EXACT).logits(), plain, 1e-5)
    lost = [
        np.square(built(path, **EXACT | {"cache": "int4"}, **balance).logits() - plain).mean()
        for balance in ({"balance": False}, {})
    ]
    assert built(path, **EXACT | {"cache": "int4"}).model.centered
    assert lost[1] < lost[0] / 2


@pytest.mark.parametrize("attention", ["fused", "packed"])
@pytest.mark.parametrize("options", [{}, {"cache_mode": 0}], ids=["pages", "offsets"])
def test_centered_keys(tmp_path: Path, attention: str, options: dict[str, int]) -> None:
    """Centered, a model gives the same logits but for rounding, and an int4 cache, which is built so, loses less."""
    tensors = random_tensors("qwen2")
    for i in range(SIZES["layers"]):
        tensors[f"blk.{i}.attn_k.bias"].reshape(2, 2, 32)[..., 24:] += 20  # of pairs that hardly rotate
    path = write_gguf(tmp_path / "model.gguf", family="qwen2", tensors=tensors)
    options = options | {"attention": attention}
    plain = built(path, **EXACT, **options).logits()
    expect_near(built(path, center=True, **EXACT, **options).logits(), plain, 1e-4)
    int4 = EXACT | {"cache": "int4"} | options
    lost = [np.square(built(path, **int4, **center).logits() - plain).mean() for center in ({"center": False}, {})]
    assert lost[1] < lost[0] / 2


def test_means_are_of_many_positions(tmp_path: Path) -> None:
    """Of a key that is the same everywhere, the mean is what RoPE leaves of it over 2,048 positions."""
    tensors = random_tensors("qwen2")
    tensors["blk.1.attn_k.bias"].reshape(2, 2, 32)[:, 0] += 200
    path = write_gguf(tmp_path / "model.gguf", family="qwen2", tensors=tensors)
    model = models.load(models.build(path, tmp_path / "built", cache="int4"))
    graph = onnx.load(model.path, load_external_data=False).graph
    mean = [numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name.endswith("key_mean")][1]
    angles = np.outer(np.arange(0, 2048, 8), model.config.inv_freq)
    expected = 200 * np.hstack([np.cos(angles), np.sin(angles)]).mean(axis=0)
    np.testing.assert_allclose(mean.reshape(2, 64), np.tile(expected, (2, 1)), atol=5)


def test_what_cannot_be_centered(tmp_path: Path) -> None:
    """Soft caps see a score itself; and keys without their mean cannot be shifted, so that they are computed again."""
    capped = write_gguf(tmp_path / "capped.gguf", family="gemma2", fields=CAPS)
    with refused("option_unknown", "center is True, expected False"):
        models.build(capped, tmp_path / "built", center=True)
    assert not models.load(models.build(capped, tmp_path / "built", cache="int4")).centered
    path = write_gguf(tmp_path / "model.gguf")
    model = models.load(models.build(path, tmp_path / "other", cache="int4", context=64))
    assert model.centered
    [request] = Engine(model, max_tokens=128).generate([TEXT * 5], keep=4, max_new_tokens=16)
    assert len(request.answer) == 16 and request.shifted > 0


def test_rope_factors_of_a_file(tmp_path: Path) -> None:
    """Llama 3's files have a factor for each pair in the place of the scaling's parameters."""
    factors = np.linspace(1, 8, SIZES["head_dim"] // 2, dtype=np.float32)
    path = write_gguf(tmp_path / "model.gguf", tensors=random_tensors() | {"rope_freqs.weight": factors})
    expect_near(built(path, **EXACT).logits(), NumpyGguf(path).logits(TEXT), 1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_keys_of_yarn_are_shifted(tmp_path: Path, family: str) -> None:
    """A model of one layer gives the logits of the tokens that stay: their keys are rotated to their new positions."""
    sizes, fields = SIZES | dict(layers=1), {f"{family}.{key}": value for key, value in YARN.items()}
    path = write_gguf(tmp_path / "model.gguf", family=family, sizes=sizes, fields=fields)
    run, text = built(path, **EXACT), [i * 7 % 256 for i in range(60)]
    seq = run.manager.create()
    run.step({seq: text})
    assert run.manager.context_shift(seq, 60, 1, n_keep=4) == 28
    expected = NumpyGguf(path).logits([*text[:4], *text[32:], 3])[-1:]
    expect_near(run.step({seq: [3]}), expected, 1e-5)


# The root mean square of what a format adds to logits, as a part of their standard deviation, at most. (The largest of
# some thousand differences, which was compared before, says more of one logit than of the format.)
CACHES = {"float32": 0, "float16": 0.001, "int8": 0.012, "int4": 0.2}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("attention", ["fused", "packed"])
def test_every_cache(tmp_path: Path, cache: str, attention: str) -> None:
    """A format gives the same bits in any layout and mode, and floats do in the two ways to attend, too."""
    path = write_gguf(tmp_path / "model.gguf", "Q4_1")
    first = built(path, **EXACT | {"cache": cache}, attention=attention).logits()
    if cache in ("float32", "float16"):
        assert np.array_equal(built(path, **EXACT | {"cache": cache}).logits(), first)
    exact = built(path, **EXACT).logits()
    assert np.sqrt(np.mean((first - exact) ** 2)) / exact.std() <= CACHES[cache]
    for cache_layout, cache_mode in ((0, 1), (2, 0)):
        options = EXACT | dict(cache=cache, cache_layout=cache_layout, cache_mode=cache_mode, page_size=4)
        assert np.array_equal(built(path, attention=attention, **options).logits(), first)


# Floats, and the codes that differ most: of 8 bits in blocks of 32, of 4 bits in blocks of 16 with minima. (All: Rust.)
INVARIANT = ["F32", "F16", "BF16", "Q8_0", "Q2_K"]


@pytest.mark.parametrize(("kind", "family"), [(kind, "llama") for kind in INVARIANT] + [("Q5_0", "gemma3")])
def test_batches_and_chunks_do_not_matter(tmp_path: Path, kind: str, family: str) -> None:
    """Logits are the same bits in any batch, in any chunks, on any number of threads."""
    fields = {"gemma3.attention.sliding_window": 20} if family == "gemma3" else None
    run = built(write_gguf(tmp_path / "model.gguf", kind, family, fields=fields), max_tokens=2048)
    text = [i * 7 % 256 for i in range(200)]
    whole = run.step({run.manager.create(): text})
    for threads in (1, 3):
        run.session = run.model.session(of_threads(threads))
        for chunks in ([200], [*[1] * 9, 60, 131], [2, 7, 33, 129, 29]):
            seq = run.manager.create(salt=bytes([threads, len(chunks)]))  # what it has not computed, it does not share
            others = [run.manager.create() for _ in range(len(chunks) % 4)]
            first = 0
            for chunk in chunks:
                new = text[first : first + chunk]
                logits = run.step({seq: new} | {other: [first, 3] for other in others}, rows=list(range(len(new))))
                assert np.array_equal(logits, whole[first : first + chunk]), (threads, chunks, chunk)
                first += chunk
            for freed in (seq, *others):
                run.manager.free(freed)


def of_threads(count: int) -> onnxruntime.SessionOptions:
    """Options for that many threads, which do not spin: a busy machine has less than one processor for each."""
    options = session_options(count)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


@pytest.mark.parametrize(("k", "n"), [(40, 18), (256, 512), (576, 1536), (1536, 576), (640, 4096)])
def test_float_products_of_onnx_runtime(k: int, n: int) -> None:
    """A row of a float product has the same bits alone and among others, on any number of threads."""
    random = np.random.default_rng(k)
    w, x = (random.standard_normal(shape).astype(np.float32) for shape in ((n, k), (200, k)))
    values = [helper.make_tensor_value_info(name, 1, ["T", None]) for name in "xy"]
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    graph = helper.make_graph([node], "product", values[:1], values[1:], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    expected = None
    for threads in (1, 2, 3):
        session = onnxruntime.InferenceSession(model, of_threads(threads), ["CPUExecutionProvider"])
        expected = session.run(None, {"x": x})[0] if expected is None else expected
        for rows in (1, 2, 3, 5, 8, 12, 16, 17, 33, 64, 100, 129, 200):
            for first in (0, 200 - rows):
                found = session.run(None, {"x": x[first : first + rows]})[0]
                assert np.array_equal(found, expected[first : first + rows]), (threads, rows, first)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_1"])
def test_rows_asked_for(tmp_path: Path, kind: str) -> None:
    """Logits are of these rows, in this order; none is a run without a head."""
    run = built(write_gguf(tmp_path / "model.gguf", kind))
    whole = run.step({run.manager.create(): TEXT})
    assert np.array_equal(run.step({run.manager.create(): [*TEXT]}, rows=[11, 0])[:1], whole[11:])
    assert run.step({run.manager.create(): PROMPT[::-1]}, rows=[]).shape == (0, len(TOKENS))


@pytest.mark.parametrize("kind", ["F16", "Q4_K"])
def test_what_is_on_disk(tmp_path: Path, kind: str) -> None:
    """Weights stay as small as they were, but for scales in float32; the checker takes the graph."""
    source = write_gguf(tmp_path / "model.gguf", kind)
    path = models.build(source, tmp_path / "model")
    onnx.checker.check_model(str(path))
    weights = sum(values.size for values in random_tensors().values() if values.ndim == 2)
    assert (tmp_path / "model/model.onnx.data").stat().st_size < weights * {"F16": 2, "Q4_K": 6 / 8}[kind] + 20_000
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == [
        "model.onnx", "model.onnx.data", "tokenizer.json",
    ]  # fmt: skip


def test_what_a_model_knows(tmp_path: Path) -> None:
    """Tokenizer, chat template and end tokens come with it; the weights decide the fingerprint."""
    source = write_gguf(tmp_path / "model.gguf", "Q8_0")
    model = models.load(models.build(source, tmp_path / "model", cache="int4", quant_group=16, center=False))
    ids = model.tokenizer.encode("<|start|>the theme 42<|end|>").ids
    assert [TOKENS[i] for i in ids][:3] == ["<|start|>", "t", "he"] and ids[-1] == model.stops[0]
    assert model.tokenizer.decode(ids) == "the theme 42"
    assert (model.bos, model.chat_template) == ("<|start|>", "{{ messages }}")
    assert (model.cache.cache_dtype, model.cache.quant_group, model.config.context_length) == ("int4", 16, 4096)
    other = models.load(models.build(write_gguf(tmp_path / "other.gguf", "Q4_0"), tmp_path / "other"))
    again = models.load(models.build(source, tmp_path / "again"))
    assert model.fingerprint == again.fingerprint != other.fingerprint


def test_options_serve_several_sessions(tmp_path: Path) -> None:
    """The operators are registered in them once."""
    model = models.load(models.build(write_gguf(tmp_path / "model.gguf"), tmp_path / "model"))
    options = onnxruntime.SessionOptions()
    first, second = (model.session(options) for _ in range(2))
    assert [value.name for value in first.get_inputs()] == [value.name for value in second.get_inputs()]
