"""Names and signatures of `kvcache_ops`, as programs rely on them."""

from __future__ import annotations

import inspect
import pickle

import kvcache_ops
import numpy as np
import onnxruntime
import pytest
from kvcache_ops import manager
from kvcache_ops.manager import Append, CacheSpec, CapacityError, HostMemory, Manager, ManagerError, Rope, Step

from managed import make
from node import node_model, node_types
from setting import FLOAT

SIGNATURES = {
    Rope: "(n_rot, *, base=10000.0, scale=1.0, style='neox', inv_freq=None)",
    HostMemory: "(spec, cache, scale=None)",
    Append: "(s, tokens=None, n=None, first_pos=None)",
    Manager: "(spec, *, mode=None, max_pages=None, key_form='roped', rope=None, window=None, sink=0, slack=0, pad=32, "
    "defrag_threshold=None, shift_limit='default', prefix_sharing=True, fingerprint='')",
    Manager.create: "(self, /, reserve=0, salt=b'')",
    Manager.free: "(self, /, s)",
    Manager.fork: "(self, /, s)",
    Manager.seq_rm: "(self, /, s, p0=-1, p1=-1)",
    Manager.seq_cp: "(self, /, src, dst, p0=-1, p1=-1)",
    Manager.seq_keep: "(self, /, s)",
    Manager.seq_add: "(self, /, s, p0, p1, delta)",
    Manager.seq_div: "(self, /, s, p0, p1, d)",
    Manager.seq_len: "(self, /, s)",
    Manager.pos_min: "(self, /, s)",
    Manager.pos_max: "(self, /, s)",
    Manager.positions: "(self, /, s)",
    Manager.slots: "(self, /, s)",
    Manager.pending: "(self, /, s)",
    Manager.context_shift: "(self, /, s, n_ctx, n_new, n_keep=0, n_discard=None)",
    Manager.defrag: "(self, /, max_moves=None)",
    Manager.compact: "(self, /, pages)",
    Manager.update: "(self, /, memory)",
    Manager.begin_step: "(self, /, appends, memory)",
    Manager.save: "(self, /, path, memory)",
    Manager.save_seq: "(self, /, path, memory, s)",
    Manager.load: "(self, /, path, memory)",
    Manager.load_seq: "(self, /, path, memory, index=0)",
    Manager.check: "(self, /)",
    Manager.stats: "(self, /)",
    Step.mask: "(self, /, dtype='float32', window='spec', alibi=None)",
    Step.commit: "(self, /)",
    Step.rollback: "(self, /)",
    manager.n_kv: "(used_max, size, pad)",
    manager.find_slot: "(busy, head, used, n)",
}

TENSORS = [
    *("token_ids", "positions", "seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"),
    *("key_positions", "order", "cached", "decoding_batches"),
]


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_signatures(function) -> None:
    """Names, order and defaults of arguments, and a docstring."""
    assert str(inspect.signature(function)) == SIGNATURES[function]
    assert len(inspect.getdoc(function)) > 20


def test_every_public_name_is_in_the_list_of_signatures() -> None:
    """Nothing is published that this file does not know."""
    public = {getattr(manager, name) for name in manager.__all__}
    assert public == {function for function in SIGNATURES if "." not in function.__qualname__} | {
        CacheSpec,
        Step,
        ManagerError,
        CapacityError,
    }
    methods = {
        getattr(kind, name)
        for kind in (Rope, HostMemory, Append, Manager, Step)
        for name in vars(kind)
        if not name.startswith("_") and callable(getattr(kind, name))
    }
    assert methods == {function for function in SIGNATURES if "." in function.__qualname__}
    assert all(kind.__module__ == "kvcache_ops.manager" for kind in (Rope, HostMemory, Append, Step))


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


def test_the_library_is_registered() -> None:
    """The module's own file is the operator library: a session with a node of the operator can be made."""
    options = onnxruntime.SessionOptions()
    kvcache_ops.register(options)
    model = node_model(node_types(FLOAT, FLOAT), {})
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["key", "value"]
