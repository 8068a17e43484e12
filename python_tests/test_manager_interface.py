"""Values and errors of `kvcache_ops.manager`. (That names and signatures are those of the stubs, mypy tells.)"""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest
from kvcache_ops.manager import Append, CapacityError, HostMemory, Manager, ManagerError, Rope, Step

from managed import make

TENSORS = [
    *("token_ids", "positions", "seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"),
    *("key_positions", "order", "cached", "decoding_batches"),
]


def test_every_attribute_has_a_docstring() -> None:
    """Those of arguments are described where they are given."""
    for kind in (Manager, Step, HostMemory, Append):
        for name in dir(kind):
            if not name.startswith("_"):
                assert inspect.getdoc(getattr(kind, name)), f"{kind.__name__}.{name}"


def test_a_rope_has_its_frequencies() -> None:
    """`scale` multiplies them, whichever way they are given."""
    assert Rope(4, base=100.0, scale=0.5).inv_freq == [0.5, 0.05]
    assert Rope(4, inv_freq=np.array([1.0, 0.25]), scale=2.0).inv_freq == [2.0, 0.5]
    assert (Rope(6, style="gptj").style, Rope(6).style, Rope(6).n_rot) == ("gptj", "neox", 6)
    assert Rope(4) == Rope(4, base=1e4) != Rope(4, style="gptj")


def test_errors_are_values_that_can_be_raised_and_pickled() -> None:
    """`kind` and `details` go with them."""
    made, memory = make(max_tokens=8)
    s = made.create()
    with pytest.raises(CapacityError) as caught:
        made.begin_step([Append(s, n=9)], memory)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.kind, copy.details) == (CapacityError, "out_of_pages", {"need": 3, "free": 2})
    assert str(copy) == "3 pages are needed, 2 are free" == str(caught.value)
    assert issubclass(CapacityError, ManagerError) and issubclass(ManagerError, ValueError)


def test_appends_tell_what_they_append() -> None:
    """A copy of the tokens, their number, and the position."""
    tokens = [5, 2**32 - 1]
    append = Append(4294967297, tokens, first_pos=3)
    tokens[0] = 6
    assert (append.s, append.tokens, append.n, append.first_pos) == (4294967297, [5, 2**32 - 1], 2, 3)
    assert repr(append) == "Append(4294967297, tokens=[5, 4294967295], first_pos=3)"
    assert (Append(4294967297, n=4).tokens, Append(4294967297, n=4).n) == (None, 4)
