"""What a call is given: element types, attributes with the specification's defaults, and the eight inputs."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn

# numpy has no int4: such a tensor is an int8 array that holds values from -8 to 7.
NUMPY_TYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "int8": np.int8,
    "int4": np.int8,
    "bfloat16": bfloat16,
    "float8e4m3fn": float8_e4m3fn,
}

STATIC_SCALES = 2  # the quant_type of floats with static scales


@dataclass(frozen=True)
class Types:
    """The element types of a call; T3 is None when no scale is given."""

    T1: str
    T2: str
    T3: str | None = None


@dataclass(frozen=True)
class StaticAttributes:
    """The attributes of static batching and their defaults."""

    num_layer: int = 1
    layer_idx: int = 0
    quant_bit: int = 0
    quant_group: int = 8
    num_repeat: int = 1
    cache_layout: int = 0
    quant_type: int = 0


@dataclass(frozen=True)
class Attributes(StaticAttributes):
    """The attributes of dynamic batching and their defaults."""

    cache_mode: int = 0
    page_size: int = 128
    quant_rotation: int = 0


@dataclass
class Inputs:
    """The inputs of one call that are only read; cache and scale are passed beside them."""

    current_key: np.ndarray  # (seqstarts[B], H, Dh) of T1
    current_value: np.ndarray  # (seqstarts[B], H, Dh) of T1
    seqstarts: np.ndarray  # (B + 1)
    kvstarts: np.ndarray  # (B + 1)
    cachestarts: np.ndarray  # (B), or (B, MaxP) when cache_mode is 1
    start_pos: np.ndarray  # (B)
    max_seqlen: np.ndarray  # () or (1)
    max_kvlen: np.ndarray  # () or (1)


INPUTS = tuple(field.name for field in fields(Inputs))
