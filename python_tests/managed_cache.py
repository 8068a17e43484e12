"""A cache of random rows and its manager: the format of rows, where they are kept, what they hold, and the operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import onnxruntime
from kvcache_ops import Cache
from kvcache_ops.manager import CacheSpec, HostMemory, Manager, Rope, Step

from codec import encode, shifted
from engine import step_inputs
from key_shift import frequencies
from kvcache import LAYOUT_AXES, NUMPY_TYPES, TYPE_NAMES, CacheFormat
from layers import layers_model, run_layers
from node import session_of
from setting import INT4, INT8, Memory, Setting

NUM_LAYER, NUM_HEADS, HEAD_DIM, N_ROT = 2, 2, 16, 12
INDEX_NAMES = ["seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"]


@dataclass(frozen=True)
class Places:
    """How a manager keeps a cache: what may differ between two that hold the same sequences."""

    mode: str
    max_t: int
    page_size: int = 1
    cache_layout: int = 0
    pad: int = 32

    @classmethod
    def draw(cls, random: np.random.Generator, mode: str, least: int) -> Places:
        """Places for at least that many rows."""
        return cls(
            mode,
            least + int(random.integers(40)),
            page_size=int(random.choice((1, 2, 4, 16))),
            cache_layout=int(random.integers(len(LAYOUT_AXES))),
            pad=int(random.choice((1, 32))),
        )


@dataclass(frozen=True)
class Rules:
    """What sequences amount to whatever their places: the format of rows, rotation, windows."""

    format: CacheFormat
    key_form: str = "roped"
    style: str = "neox"
    window: int | None = None
    sink: int = 0
    slack: int = 0
    prefix_sharing: bool = True

    @property
    def shiftable(self) -> bool:
        """Whether positions of stored rows can change."""
        return self.format.cache_type != INT8 or self.format.quant_bit == 8

    def spec(self, places: Places) -> CacheSpec:
        """The manager's view of it."""
        format = self.format
        return CacheSpec(
            num_layer=NUM_LAYER,
            num_heads=NUM_HEADS,
            head_dim=HEAD_DIM,
            max_t=places.max_t,
            cache_type=TYPE_NAMES[format.cache_type],
            scale_type=None if format.scale_type is None else TYPE_NAMES[format.scale_type],
            quant_bit=format.quant_bit,
            quant_group=format.quant_group,
            cache_layout=places.cache_layout,
            mode=places.mode,
            page_size=places.page_size,
            key_form=self.key_form,
            rope=Rope(N_ROT, base=500.0, style=self.style) if self.shiftable else None,
            window=self.window,
            sink=self.sink,
            slack=self.slack,
            pad=places.pad,
            shift_limit=None,
            prefix_sharing=self.prefix_sharing,
            fingerprint="script",
        )

    def turn(self, key: tuple, delta: int) -> tuple:
        """The K-shift of one stored key (L, H, Dh)."""
        stored, scale = key
        one = None if scale is None else scale[None]
        stored, scale = shifted(
            stored[None], one, np.array([delta]), self.format, frequencies(N_ROT, 500.0), style=self.style
        )
        return stored[0], None if scale is None else scale[0]


@lru_cache(maxsize=4096)
def content(history: bytes, format: CacheFormat) -> tuple[np.ndarray, tuple, tuple]:
    """What a row with that history stores: its key and value as T1, (2, L, H, Dh), and each of them as stored."""
    random = np.random.default_rng(list(history))
    t1 = NUMPY_TYPES[format.current_type]
    shape = (2, NUM_LAYER, NUM_HEADS, HEAD_DIM)
    if format.current_type == INT8:
        current = random.integers(-128, 128, shape).astype(np.int8)
    else:
        current = (random.standard_normal(shape) * 2.0 ** random.integers(-3, 4)).astype(t1)
    key, value = (encode(x, format) for x in current)
    return current, key, value


@dataclass
class Managed:
    """A manager, the memory that it manages, and a session of the operator for each layer."""

    rules: Rules
    places: Places
    cache: Cache = field(init=False)
    memory: HostMemory = field(init=False)
    manager: Manager = field(init=False)
    session: onnxruntime.InferenceSession = field(init=False)

    def __post_init__(self) -> None:
        format, spec = self.rules.format, self.rules.spec(self.places)
        sizes = dict(num_layer=NUM_LAYER, num_heads=NUM_HEADS, head_dim=HEAD_DIM, max_t=self.places.max_t)
        self.cache = format.spec(**sizes, cache_layout=self.places.cache_layout).allocate()
        self.fill_with_nan(np.arange(self.places.max_t))
        self.memory = HostMemory(spec, self.cache.cache, self.cache.scale)
        self.manager = Manager(spec)
        setting = Setting(
            t1=format.current_type,
            t2=format.cache_type,
            t3=format.scale_type,
            quant_bit=format.quant_bit,
            quant_group=format.quant_group,
            num_layer=NUM_LAYER,
            cache_mode=int(self.places.mode == "paged"),
            cache_layout=self.places.cache_layout,
            page_size=self.places.page_size,
            num_heads=NUM_HEADS,
            head_dim=HEAD_DIM,
        )
        self.session = session_of(layers_model(setting))

    def fill_with_nan(self, slots: np.ndarray) -> None:
        """Fills slots that nobody may read with NaN, or with numbers that show in every result."""
        for array in (self.cache.cache, self.cache.scale):
            if array is not None:
                filler = np.nan if array.dtype.kind == "f" else 0x5A
                array[(slice(None),) * self.cache.spec.axes.index("MaxT") + (slots,)] = filler

    def bytes(self) -> bytes:
        """All of the memory."""
        return b"".join(x.tobytes() for x in (self.cache.cache, self.cache.scale) if x is not None)

    def run(self, step: Step, current: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Runs all layers of the operator on the step; current is (tokens, 2, L, H, Dh)."""
        currents = [
            {
                name: np.ascontiguousarray(current[:, i, layer])
                for i, name in enumerate(("current_key", "current_value"))
            }
            for layer in range(NUM_LAYER)
        ]
        int4_shape = self.cache.spec.cache_shape if self.rules.format.cache_type == INT4 else None
        memory = Memory(self.cache.cache, self.cache.scale, int4_shape)
        return run_layers(self.session, currents, step_inputs(step, INDEX_NAMES), memory)
