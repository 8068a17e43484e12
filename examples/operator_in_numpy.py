"""KeyValueCache in numpy, in fifty lines, without checks, packed int4, static scales and rotated heads.

Run as a program it answers the conformance suite (docs/conformance.md), which starts it once:

    python -m kvcache_ops conformance --program 'python examples/operator_in_numpy.py' --serve --suite key-value-cache \
        --only T2=float32,float16,int8 --filter layout3-paged
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

Array = NDArray[Any]

INPUTS = ["current_key", "current_value", "seqstarts", "kvstarts", "cachestarts", "start_pos"]
INPUTS += ["max_seqlen", "max_kvlen"]
# The axes of slots, layers, keys and values, and heads in each cache_layout.
AXES = {0: (0, 1, 2, 3), 1: (1, 0, 2, 3), 2: (2, 0, 1, 3), 3: (3, 0, 1, 2)}
DEFAULTS = {"num_layer": 1, "layer_idx": 0, "quant_bit": 0, "quant_group": 8}
DEFAULTS |= {"num_repeat": 1, "cache_mode": 0, "cache_layout": 0, "page_size": 128}


def of_layer(array: Array, attributes: dict[str, int]) -> Array:
    """The rows of a layer of cache or scale, (MaxT, 2, H, ...): a view."""
    return array.transpose(*AXES[attributes["cache_layout"]], 4)[:, attributes["layer_idx"]]


def slots(attributes: dict[str, int], cachestarts: Array, first: Array, last: Array) -> Array:
    """The slots of tokens first[b]..last[b] of each sequence b, sequence after sequence."""
    tokens = [(b, t) for b in range(len(first)) for t in range(first[b], last[b])]
    b, t = np.array(tokens, np.int64).reshape(-1, 2).T
    if attributes["cache_mode"] == 0:
        return cachestarts[b] + t
    page, rest = np.divmod(t, attributes["page_size"])
    return cachestarts[b, page] + rest


def quantize(rows: Array, codes_type: np.dtype[Any], quant_bit: int, quant_group: int) -> tuple[Array, Array]:
    """Codes, (..., Dh), and scales, (..., Dh / quant_group), of rows of type T1."""
    is_float = codes_type == "float8_e4m3fn"
    t1, qmax = rows.dtype.type, 448 if is_float else {8: 127, 4: 8}[quant_bit]
    groups = rows.reshape(*rows.shape[:-1], rows.shape[-1] // quant_group, quant_group)
    high, low = groups.max(axis=-1), (-groups).max(axis=-1)
    scale = np.maximum(np.maximum(high, low) / t1(qmax), t1(1e-5))
    scale = np.where((quant_bit == 4) & (high > low), -scale, scale)  # the largest element of int4 becomes -8
    quotients = np.where(np.isfinite(scale[..., None]), groups / scale[..., None], t1(0))
    most = 2 ** (quant_bit - 1) - 1
    codes = quotients if is_float else np.clip(np.rint(quotients), -qmax, most)  # halves go to the even integer
    return codes.astype(codes_type).reshape(rows.shape), scale


def dequantize(codes: Array, scale: Array, quant_group: int) -> Array:
    """The product is of the type of the scale, T3."""
    groups = codes.reshape(*scale.shape, quant_group).astype(scale.dtype)
    return (groups * scale[..., None]).reshape(codes.shape)


def key_value_cache(
    attributes: dict[str, int], inputs: dict[str, Array], cache: Array, scale: Array | None
) -> tuple[Array, Array]:
    """Writes cache and scale in place, and gives key and value."""
    attributes = DEFAULTS | attributes
    quant_bit, quant_group = attributes["quant_bit"], attributes["quant_group"]
    start_pos, cachestarts = inputs["start_pos"], inputs["cachestarts"]
    current = np.stack([inputs["current_key"], inputs["current_value"]], axis=1)  # (tokens, 2, H, Dh)
    rows = of_layer(cache, attributes)

    stored = slots(attributes, cachestarts, start_pos, start_pos + np.diff(inputs["seqstarts"]))
    if quant_bit:
        rows[stored], of_layer(scale, attributes)[stored] = quantize(current, rows.dtype, quant_bit, quant_group)
    else:
        rows[stored] = current

    loaded = slots(attributes, cachestarts, np.zeros_like(start_pos), np.diff(inputs["kvstarts"]))
    everything = rows[loaded]
    if quant_bit:
        everything = dequantize(everything, of_layer(scale, attributes)[loaded], quant_group)
    everything = everything.astype(current.dtype).repeat(attributes["num_repeat"], axis=2)
    return everything[:, 0], everything[:, 1]


def run_case(folder: str, output: str) -> None:
    """Runs the calls of a case, and writes what each leaves and returns."""
    case = yaml.safe_load((Path(folder) / "case.yaml").read_text())
    tensors = load_file(Path(folder) / "tensors.safetensors")
    cache, scale, results = tensors["cache"], tensors.get("scale"), {}
    for call in range(len(case["steps"])):
        inputs = {name: tensors[f"{call}.{name}"] for name in INPUTS}
        key, value = key_value_cache(case["attributes"], inputs, cache, scale)
        after = {"key": key, "value": value, "cache": cache} | ({} if scale is None else {"scale": scale})
        results |= {f"{call}.{name}": np.array(tensor, order="C") for name, tensor in after.items()}
    save_file(results, output)


if __name__ == "__main__":
    for line in sys.stdin:
        run_case(*line.rstrip("\n").split("\t"))
        print("done", flush=True)
