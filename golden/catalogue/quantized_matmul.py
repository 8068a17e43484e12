"""Cases of QuantizedMatMul and QuantizedGather: one file each, with the case as JSON in its metadata.

{"about", "rules", "operator", "attributes"}, and of a call that is refused {"error", "mentions"}. The tensors are the
inputs that the call has, and `y`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import numpy as np
from safetensors.numpy import save

from oracle.quantized_matmul import quantized_gather, quantized_matmul

FOLDER = "quantized_cases"
N, K = 18, 40  # no whole panels, no whole blocks
FORMS = [(bits, block, minima) for bits in (4, 8) for block in (16, 32) for minima in (False, True)]
SUBNORMAL = np.float32(2.0**-149)


def files() -> dict[str, bytes]:
    """The cases by their files."""
    made = [*_forms(), *_values(), *_shapes(), *_refused(), *_gathered()]
    assert len({name for name, _ in made}) == len(made), "names are unique"
    return {f"{FOLDER}/{name}.safetensors": content for name, content in made}


def _matrix(name: str, bits: int, block: int, minima: bool, n: int = N, k: int = K) -> dict[str, np.ndarray]:
    """Random panels, their padding too."""
    random = np.random.Generator(np.random.PCG64(crc32(name.encode())))
    p, b = -(-n // 16), -(-k // block)
    made = {"panels": random.integers(0, 256, (p, b, block * bits * 2), np.uint8)}
    made["scales"] = (random.random((p, b, 16), np.float32) + np.float32(0.5)) / np.float32(16)
    if minima:
        made["minima"] = random.random((p, b, 16), np.float32) - np.float32(1)
    return made


def _rows(name: str, *shape: int) -> np.ndarray:
    """Rows of both signs, some elements far larger."""
    random = np.random.Generator(np.random.PCG64(crc32(name.encode()) + 1))
    values = random.random(shape, np.float32) - np.float32(0.5)
    return np.where(random.random(shape) < 0.05, values * np.float32(100), values)


def _case(
    name: str,
    about: str,
    rules: list[str],
    attributes: Mapping[str, int],
    inputs: Mapping[str, np.ndarray],
    error: str | None = None,
    mentions: list[str] | None = None,
) -> tuple[str, bytes]:
    """One case; the oracle gives the output of a legal one, to which a tensor without elements is none."""
    gather = "indices" in inputs
    operator = "QuantizedGather" if gather else "QuantizedMatMul"
    case: dict[str, Any] = {"about": about, "rules": rules, "operator": operator, "attributes": dict(attributes)}
    tensors = {key: np.ascontiguousarray(values).reshape(values.shape) for key, values in inputs.items()}
    if error is not None:
        case |= {"error": error, "mentions": mentions}
    else:
        given = {key: values for key, values in inputs.items() if key not in ("minima", "bias") or values.size}
        y = quantized_gather(attributes, **given) if gather else quantized_matmul(attributes, **given)
        tensors["y"] = np.ascontiguousarray(y, np.float32).reshape(y.shape)
    return name, save(tensors, {"case": json.dumps(case)})


def _attributes(bits: int = 8, block: int = 32, activation_bits: int = 16, **more: int) -> dict[str, int]:
    return {"N": N, "K": K, "bits": bits, "block_size": block, "activation_bits": activation_bits} | more


def _forms() -> Iterator[tuple[str, bytes]]:
    rules = ["panels", "panels.padding", "weights", "activations", "sums"]
    for bits, block, minima in FORMS:
        for activation_bits in (8, 16):
            name = f"product-{bits}-bits-block-{block}-int{activation_bits}{'-minima' if minima else ''}"
            inputs = {"x": _rows(name, 3, K), **_matrix(name, bits, block, minima)}
            if block == 32:
                inputs["bias"] = _rows(f"{name} bias", N)
            yield _case(name, "every form of codes", rules, _attributes(bits, block, activation_bits, N=N, K=K), inputs)


def _values() -> Iterator[tuple[str, bytes]]:
    for bits in (8, 16):
        name, top = f"ties-int{bits}", (1 << (bits - 1)) - 1
        x = np.resize(np.array([top, 0.5, 1.5, -2.5, 3.5, 0.49, -0.5], np.float32), (2, K))
        inputs = {"x": x, **_matrix(name, 8, 32, False)}
        yield _case(name, "codes halfway between integers", ["activations"], _attributes(8, 32, bits), inputs)
    name = "largest-sums"
    inputs = {"x": np.full((2, K), 1, np.float32) * np.array([[1], [-3]], np.float32), **_matrix(name, 8, 32, True)}
    inputs["panels"] = inputs["panels"] | np.uint8(0xFC)
    yield _case(name, "sums of more than 24 bits are rounded to float32", ["sums"], _attributes(), inputs)
    for bits in (8, 16):
        name, top = f"small-int{bits}", (1 << (bits - 1)) - 1
        rows = [0, -0.0, SUBNORMAL, 2.0**-101 / top, 2.0**-100 / top, -(2.0**-100), 2.0**-99]
        x = np.repeat(np.array(rows, np.float32)[:, None], K, axis=1)
        x[0, -1], x[2, 3] = 1, -(2.0**-126)
        inputs = {"x": x, **_matrix(name, 4, 32, True)}
        about = "zeros, subnormal and other small rows; one block of zeros beside another"
        yield _case(name, about, ["activations.small", "activations"], _attributes(4, 32, bits), inputs)
        name = f"scales-int{bits}"
        inputs = {"x": _rows(name, 3, K) * np.float32(2.0**90), **_matrix(name, 8, 16, True)}
        inputs["x"][1] = np.float32(3e38)
        for part, values in (("scales", [3e38, 2.0**-149, -1e-30, 0, 1]), ("minima", [-3e38, 2.0**-140, 1e-30, 1])):
            inputs[part] = np.resize(np.array(values, np.float32), inputs[part].shape)
        about = "scales that overflow and vanish, of both signs"
        yield _case(name, about, ["non-finite", "sums"], _attributes(8, 16, bits), inputs)
    for name, value in (("nan", np.nan), ("infinity", np.inf), ("minus-infinity", -np.inf)):
        x = _rows(name, 4, K)
        x[1, 3], x[3, K - 1] = value, value
        inputs = {"x": x, **_matrix(name, 4, 16, True), "bias": _rows(f"{name} bias", N)}
        yield _case(name, "in two rows of four", ["non-finite"], _attributes(4, 16, 8), inputs)
    for gate, bits in ((1, 16), (2, 8)):
        name = f"gate-{gate}"
        x = _rows(name, 5, 2 * K) * np.float32(8)
        x[1, :K] = np.linspace(-90, 90, K, dtype=np.float32)
        x[2, :K] = np.resize(np.array([0, -0.0, SUBNORMAL, -1e-30, -87.3, -87.34, -3e38, 3e38], np.float32), K)
        x[2, K:], x[3, 0], x[4, K] = 0.5, np.nan, np.inf
        x[4, 1], x[4, 1 + K] = 3e38, 2
        inputs = {"x": x, **_matrix(name, 4, 32, False)}
        rules = ["gate", "gate.exp", "non-finite"]
        yield _case(name, "gates of all sizes", rules, _attributes(4, 32, bits, gate=gate), inputs)
    name = "not-finite-matrix"
    inputs = {"x": _rows(name, 2, K), **_matrix(name, 8, 32, True), "bias": _rows(f"{name} bias", N)}
    inputs["scales"][0, 0, 1], inputs["minima"][0, 1, 2], inputs["bias"][4] = np.inf, np.nan, np.nan
    yield _case(name, "in some columns: these alone", ["non-finite"], _attributes(), inputs)


def _shapes() -> Iterator[tuple[str, bytes]]:
    for label, shape in (("rank-1", (K,)), ("rank-4", (2, 1, 3, K)), ("no-rows", (2, 0, K))):
        inputs = {"x": _rows(label, *shape), **_matrix(label, 4, 32, False)}
        rules = ["rows.none"] if 0 in shape else ["shapes"]
        yield _case(label, f"x has {len(shape)} axes", rules, _attributes(4), inputs)
    name = "one-column"
    inputs = {"x": _rows(name, 2, 1), **_matrix(name, 8, 16, False, 1, 1)}
    yield _case(name, "N and K of 1", ["panels.padding"], _attributes(8, 16, N=1, K=1), inputs)
    name = "optional-empty"
    inputs = {"x": _rows(name, 2, K), **_matrix(name, 4, 32, False)}
    inputs |= {"minima": np.empty((0, 1, 16), np.float32), "bias": np.empty(0, np.float32)}
    yield _case(name, "minima and bias without elements", ["optional.empty"], _attributes(4), inputs)


def _refused() -> Iterator[tuple[str, bytes]]:
    whole = {"x": _rows("refused", 2, K), **_matrix("refused", 4, 32, True), "bias": _rows("refused bias", N)}
    ranges = dict(
        N=(0, -1), K=(0, -(2**63)), bits=(0, 5, 16), block_size=(8, 24, 64), activation_bits=(4, 32), gate=(-1, 3)
    )
    for attribute, value in ((attribute, value) for attribute, values in ranges.items() for value in values):
        name, about, rules = f"refused-{attribute.lower()}-{value}", f"{attribute} is {value}", ["attributes.ranges"]
        wrong, mentions = _attributes(4) | {attribute: value}, [f"attribute {about}"]
        yield _case(name, about, rules, wrong, whole, "attribute_out_of_range", mentions)
    shapes = [
        ("x", whole["x"][:, 1:], "shape_mismatch", ["x has 39 in axis 1", "expected 40"]),
        ("panels", whole["panels"][..., 1:], "shape_mismatch", ["panels has 255 in axis 2", "expected 256"]),
        ("scales", whole["scales"][:1], "shape_mismatch", ["scales has 1 in axis 0", "expected 2"]),
        ("minima", whole["minima"][:, :1], "shape_mismatch", ["minima has 1 in axis 1", "expected 2"]),
        ("bias", whole["bias"][1:], "shape_mismatch", ["bias has 17 in axis 0", "expected 18"]),
        ("scales", whole["scales"][0], "rank_mismatch", ["scales has rank 2", "expected rank 3"]),
        ("x", np.float32(1).reshape(()), "rank_mismatch", ["x has rank 0"]),
    ]
    for i, (part, values, error, mentions) in enumerate(shapes):
        name = f"refused-{part}-{i}"
        yield _case(name, f"{part} is misshapen", ["shapes"], _attributes(4), whole | {part: values}, error, mentions)
    about, mentions = "a row of K columns, which has no second half", [f"x has {K} in axis 1", f"expected {2 * K}"]
    yield _case("refused-x-gated", about, ["shapes"], _attributes(4, gate=1), whole, "shape_mismatch", mentions)
    gathered = {"indices": np.array([1, 2]), **_matrix(name, 4, 32, True)}
    attributes = {key: value for key, value in _attributes(4).items() if key != "activation_bits"}
    for index in (-1, N, 2**62):
        wrong = gathered | {"indices": np.array([[0, 3], [index, 1]])}
        mentions = [f"indices is {index} at element 2", "0 to N - 1 = 17"]
        yield _case(f"refused-index-{index}", "no row", ["indices"], attributes, wrong, "index_range", mentions)
    wrong = gathered | {"scales": gathered["scales"][:, 1:]}
    mentions = ["scales has 1 in axis 1"]
    yield _case("refused-gather", "scales are misshapen", ["shapes"], attributes, wrong, "shape_mismatch", mentions)
    wrong, rules, error = attributes | {"bits": 3}, ["attributes.ranges"], "attribute_out_of_range"
    yield _case("refused-gather-bits", "bits is 3", rules, wrong, gathered, error, ["attribute bits is 3"])


def _gathered() -> Iterator[tuple[str, bytes]]:
    for i, (bits, block, minima) in enumerate(FORMS):
        name = f"rows-{bits}-bits-block-{block}{'-minima' if minima else ''}"
        indices = np.array([[17, 0, 16], [3, 3, 15]]).reshape([(2, 3), (6,), (1, 6, 1)][i % 3])
        inputs = {"indices": indices, **_matrix(name, bits, block, minima)}
        if minima:
            inputs["scales"][1, 0, 1], inputs["minima"][0, 1, 0] = 3e38, np.nan
        attributes = {"N": N, "K": K, "bits": bits, "block_size": block}
        yield _case(name, "rows of both panels, one twice", ["panels", "panels.padding", "weights"], attributes, inputs)
    for name, indices in (("rows-scalar", np.array(5)), ("rows-none", np.empty((0, 2), np.int64))):
        inputs = {"indices": indices, **_matrix(name, 4, 32, False), "minima": np.empty((2, 0, 16), np.float32)}
        attributes = {"N": N, "K": K, "bits": 4, "block_size": 32}
        yield _case(name, f"indices of rank {indices.ndim}", ["indices", "optional.empty"], attributes, inputs)
