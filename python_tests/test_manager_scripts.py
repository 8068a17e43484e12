"""The binding replays scripts of the manager's Rust tests, which a model has judged: each call has the same result or
the same kind of error, and leaves the same rows, positions, slots and figures.

`manager_traces.jsonl` has a script in each line, written by the tests of the crate `kvcache-manager`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvcache_ops.manager import Append, ManagerError, Rope, Step

from managed import make

TRACES = [json.loads(line) for line in (Path(__file__).parent / "manager_traces.jsonl").open()]


class Replay:
    """A manager, and the ids of the sequences that a script calls by number."""

    def __init__(self, arguments: dict[str, Any], path: Path):
        self.path = path
        self.ids: dict[int, int] = {}
        self.open(arguments)

    def open(self, arguments: dict[str, Any]) -> None:
        """A new manager and its memory."""
        rope = arguments["rope"]
        self.manager, self.memory = make(**arguments | {"rope": None if rope is None else Rope(**rope)})

    def call(self, name: str, args: list) -> Any:
        """What a call gives, with numbers for sequences."""
        ids, manager = self.ids, self.manager
        match name:
            case "create":
                return manager.create(args[0], bytes([args[1]]))
            case "step":
                return self.step(args)
            case "update":
                return manager.update(self.memory)
            case "defrag" | "compact":
                return len(getattr(manager, name)(*args))
            case "save_seq":
                return manager.save_seq(self.path, self.memory, ids[args[0]])
            case "load_seq":
                return manager.load_seq(self.path, self.memory)
            case "reload":
                manager.save(self.path, self.memory)
                self.open(args[0])
                return self.manager.load(self.path, self.memory)
            case "seq_cp":
                return manager.seq_cp(ids[args[0]], ids[args[1]], *args[2:])
            case _:
                seq = None if args[0] is None else ids[args[0]]
                return getattr(manager, name)(seq, *args[1:])

    def step(self, appends: list) -> Step:
        """An open step."""
        made = []
        for number, tokens, n, first_pos in appends:
            what = {"n": n} if tokens is None else {"tokens": tokens}
            made.append(Append(self.ids[number], **what, first_pos=first_pos))
        return self.manager.begin_step(made, self.memory)

    def check(self, call: dict[str, Any]) -> None:
        """Makes a call, and compares all that can be seen."""
        try:
            result = self.call(call["call"], call["args"])
        except ManagerError as error:
            assert error.kind == call.get("error"), error
        else:
            assert "error" not in call, f"expected {call['error']}"
            self.compare(call["call"], result, call["result"])
        for number, positions, slots, pending in call["sequences"]:
            seq = self.ids[number]
            assert self.manager.positions(seq).tolist() == positions
            assert self.manager.slots(seq).tolist() == slots
            assert self.manager.pending(seq).tolist() == pending
            assert self.manager.seq_len(seq) == len(positions)
            assert (self.manager.pos_min(seq), self.manager.pos_max(seq)) == (
                (positions[0], positions[-1]) if positions else (None, None)
            )
        stats = self.manager.stats()
        assert {name: stats[name] for name in call["stats"]} == call["stats"]
        self.manager.check()

    def compare(self, name: str, result: Any, expected: Any) -> None:
        """A result with what the script had."""
        if name in ("create", "fork", "load_seq"):
            self.ids[expected] = result
        elif name == "reload":
            self.ids |= dict(zip(expected, result, strict=True))
        elif name == "step":
            mask = np.zeros(expected["mask_shape"], bool)
            mask.flat[expected["visible"]] = True
            np.testing.assert_array_equal(result.mask(), np.where(mask, 0, -np.inf))
            for tensor in expected.keys() - {"mask_shape", "visible", "end"}:
                got = getattr(result, tensor)
                assert got.dtype == np.int64 and got.flags.c_contiguous, tensor
                assert got.reshape(-1).tolist() == np.reshape(expected[tensor], -1).tolist(), tensor
            result.commit() if expected["end"] == "commit" else result.rollback()
        else:
            assert (expected or 0) == (result or 0)


@pytest.mark.parametrize("trace", TRACES, ids=range(len(TRACES)))
def test_a_script(trace: dict[str, Any], tmp_path: Path) -> None:
    """From its first call to its last."""
    replay = Replay(trace["cache"], tmp_path / "session")
    for call in trace["calls"]:
        replay.check(call)


def test_scripts_make_every_call() -> None:
    """And have some refused."""
    calls = [call for trace in TRACES for call in trace["calls"]]
    made = {call["call"] for call in calls if "result" in call}
    assert made >= {
        *("create", "fork", "free", "seq_rm", "seq_cp", "seq_keep", "seq_add", "seq_div", "context_shift", "defrag"),
        *("compact", "update", "step", "reload", "save_seq", "load_seq"),
    }
    assert len({call["error"] for call in calls if "error" in call}) >= 4
