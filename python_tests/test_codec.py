"""The numpy codec and K-shift that the manager's tests compare with are themselves the oracle's, and G10 and G11's."""

from __future__ import annotations

import numpy as np
import pytest

from codec import decode, encode, packed, shifted, unpacked
from key_shift import frequencies, turned
from kvcache import FORMATS, CacheFormat
from oracle.quantize import dequantize, quantize
from setting import FLOAT, HALF, INT4, INT8


@pytest.mark.parametrize("scale_type", [FLOAT, HALF])
@pytest.mark.parametrize("current_type", [FLOAT, HALF])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_codec_is_the_oracles(bits: int, current_type: int, scale_type: int) -> None:
    """Group by group, and through the packed form."""
    format = CacheFormat(current_type, INT4 if bits == 4 else INT8, scale_type, bits, 8)
    t1 = np.float32 if current_type == FLOAT else np.float16
    random = np.random.default_rng(bits)
    x = (random.standard_normal((50, 2, 32)) * 2.0 ** random.integers(-20, 12, (50, 2, 32))).astype(t1)
    codes, scale = encode(x, format)
    loaded = decode(unpacked(packed(codes, format), format), scale, format, t1)
    for index in np.ndindex(50, 2, 4):
        group = (*index[:2], slice(8 * index[2], 8 * index[2] + 8))
        expected, step = quantize(x[group], bits)
        assert (codes[group] == expected).all() and scale[index] == scale.dtype.type(step)
        assert (loaded[group] == dequantize(expected, scale[index], t1)).all()


@pytest.mark.parametrize(
    ("style", "n_rot", "expected"),
    [
        ("neox", 4, [-1.9841106, 1.9599006, 2.4623778, 4.0197997]),
        ("gptj", 4, [-1.1426396, 1.9220755, 2.9598508, 4.0297995]),
        ("neox", 2, [-1.1426396, 1.9220755, 3, 4]),
    ],
)
def test_turns_of_g10(style: str, n_rot: int, expected: list[float]) -> None:
    """Keys 1 2 3 4, one position on."""
    keys = turned(np.array([[1, 2, 3, 4]], np.float32), np.array([1]), frequencies(n_rot), style)
    assert (keys[0] == np.array(expected, np.float32)).all()


def test_the_quantized_turn_of_g11() -> None:
    """Keys 1..9 as int8, one position on: codes and scale; the second row has delta 0 and keeps its bytes."""
    format = CacheFormat(FLOAT, INT8, FLOAT, quant_bit=8, quant_group=8)
    stored, scale = encode(np.arange(1, 9, dtype=np.float32)[None].repeat(2, 0), format)
    assert stored[0].tolist() == [16, 32, 48, 64, 79, 95, 111, 127] and f"{scale[0, 0]:.8f}" == "0.06299213"
    new, new_scale = shifted(stored, scale, np.array([1, 0]), format, frequencies(8))
    assert new[0].tolist() == [-58, 22, 47, 64, 56, 98, 111, 127] and f"{new_scale[0, 0]:.8f}" == "0.06302384"
    assert (new[1] == stored[1]).all() and new_scale[1] == scale[1]


@pytest.mark.parametrize("name", FORMATS)
def test_turns_add_up(name: str) -> None:
    """Two turns and one of their sum agree up to what storing in between costs."""
    format = FORMATS[name]
    keys = np.random.default_rng(1).standard_normal((20, 2, 64)).astype(np.float32)
    stored = encode(keys, format)
    twice = shifted(
        *shifted(*stored, np.full(20, -30), format, frequencies(64)), np.full(20, 11), format, frequencies(64)
    )
    once = shifted(*stored, np.full(20, -19), format, frequencies(64))
    difference = np.abs(decode(*twice, format, np.float32) - decode(*once, format, np.float32)).max()
    assert difference < {"float32": 2e-6, "float16": 6e-3, "int8": 0.06, "int4": 1.2}[name]
