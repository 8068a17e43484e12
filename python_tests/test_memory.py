"""Memory that a binding by address can get wrong: shared with what a call writes, or not aligned."""

from __future__ import annotations

import numpy as np
import pytest

from compare import assert_same_arrays
from kvcache import ELEMENT_TYPES
from node import session_of
from ragged import RaggedCache
from setting import HALF, INT8, Setting

pytestmark = pytest.mark.runtime

SETTING = Setting(HALF, INT8, HALF, quant_bit=8)
SESSION = session_of(SETTING.model())


class Example:
    """A legal call of two sequences, whose tensors can be bound at other addresses than their own."""

    def __init__(self) -> None:
        random = np.random.default_rng(23)
        ragged = RaggedCache(random, [40, 40])
        self.memory = SETTING.memory(random, ragged.max_t)
        self.arrays = SETTING.inputs(random, ragged.step(random, [0, 1], [4, 2])) | self.memory.arrays
        shape = (6, SETTING.num_heads, SETTING.head_dim)
        self.outputs = {name: np.zeros(shape, np.float16) for name in ("key", "value")}

    def address(self, name: str) -> int:
        """Where a tensor lies."""
        return (self.arrays | self.outputs)[name].ctypes.data

    def run(self, **addresses: int) -> None:
        """The call, with some tensors at these addresses."""
        binding = SESSION.io_binding()
        for bind, arrays in ((binding.bind_input, self.arrays), (binding.bind_output, self.outputs)):
            for name, array in arrays.items():
                address = addresses.get(name, array.ctypes.data)
                bind(name, "cpu", 0, ELEMENT_TYPES[array.dtype], array.shape, address)
        SESSION.run_with_iobinding(binding)

    def refusal(self, **addresses: int) -> str:
        """The message with which the call is refused, which leaves every tensor as it was."""
        every = self.arrays | self.outputs
        before = {name: array.copy() for name, array in every.items()}
        with pytest.raises(Exception) as refusal:
            self.run(**addresses)
        assert_same_arrays(every, before)
        return str(refusal.value)


def test_the_call_that_these_tests_break_is_legal() -> None:
    """It stores and loads: what follows is refused for the memory alone."""
    example = Example()
    before = example.memory.copy()
    example.run()
    assert (example.memory.cache != before.cache).any() and example.outputs["key"].any()


@pytest.mark.parametrize(
    ("written", "other"),
    [
        ("cache", "current_key"),
        ("cache", "cachestarts"),
        ("scale", "cache"),
        ("key", "current_key"),
        ("key", "scale"),
        ("value", "key"),
    ],
)
def test_shared_memory(written: str, other: str) -> None:
    """What is written shares no byte with anything else, be it the first or the last one; the message names both."""
    example = Example()
    # The smaller tensor goes into the larger one, so that all of its bytes exist.
    small, large = sorted((written, other), key=lambda name: (example.arrays | example.outputs)[name].nbytes)
    sizes = {name: (example.arrays | example.outputs)[name].nbytes for name in (small, large)}
    for offset in (0, (sizes[large] - sizes[small]) // 8 * 8):
        message = example.refusal(**{small: example.address(large) + offset})
        assert f"operands_overlap: {written} shares memory with {other}" in message


@pytest.mark.parametrize("name", ["current_value", "start_pos", "scale", "key"])
def test_odd_addresses(name: str) -> None:
    """An address that is no multiple of the element's size is refused by the name of the tensor."""
    example = Example()
    room = np.zeros(2**16, np.uint8)
    message = example.refusal(**{name: room.ctypes.data + 1})
    assert f"misaligned: {name}" in message
    assert not room.any()
