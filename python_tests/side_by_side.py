"""The decoder on the operator's cache, kept by the manager, and the decoder on an emulated cache, run side by side.

The emulated one has a list of rows for each sequence, as `naive_sequences` edits them, and the K-shift in numpy; it
knows of slots only which cell of `cells` holds which row, since attention sums in the order of cells. All else in the
two decoders is the same, so every bit must be.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from kvcache_ops.manager import Append, Step

from codec import decode, unpacked
from compare import assert_same_bits
from decoder import Decoder, build_decoder
from emulated_cache import EmulatedKeyValues, shifted_key
from engine import Engine
from kvcache import CacheFormat
from naive_sequences import NaiveSequences, Row
from node import quiet_options


class SideBySide:
    """Sequences in both; tokens go in, equal logits come out. Edits go to `manager` and to `naive`, each by its own."""

    def __init__(self, decoder: Decoder, format: CacheFormat, **places):
        """`places` are the engine's: max_t, mode, page_size, cache_layout, key_form."""
        self._decoder, self._format = decoder, format
        self._places = places
        self.engine = Engine(decoder, format, **places, threads=1, expose=True)
        source = EmulatedKeyValues(decoder, format, key_form=places.get("key_form", "roped"))
        self._emulated = onnxruntime.InferenceSession(
            build_decoder(decoder, source, expose=True), quiet_options(), providers=["CPUExecutionProvider"]
        )
        self.naive = NaiveSequences(
            lambda key, delta: shifted_key(key, delta, decoder, format), raw=places.get("key_form") == "raw"
        )
        self._computed: dict[tuple[int, ...], list[Row]] = {}  # rows by all the tokens up to them
        self.cached = 0  # how many rows were found in the prefix index

    @property
    def manager(self):
        """The manager of the cache."""
        return self.engine.manager

    def create(self) -> int:
        """A new sequence."""
        seq = self.manager.create()
        self.naive.create(seq)
        return seq

    def fork(self, seq: int) -> int:
        """A second sequence of the same rows."""
        new = self.manager.fork(seq)
        self.naive.fork(seq, new)
        return new

    def free(self, seq: int) -> None:
        """The sequence is gone."""
        self.manager.free(seq)
        self.naive.free(seq)

    def reload(self, path: Path, **places) -> dict[int, int]:
        """Saves all, and loads it into a new cache kept in other places; new ids by old."""
        self.manager.update(self.engine.memory)
        self.naive.update()
        self.manager.save(path, self.engine.memory)
        self._places |= places
        self.engine = Engine(self._decoder, self._format, **self._places, threads=1, expose=True)
        new = dict(zip(self.naive.rows, self.manager.load(path, self.engine.memory)))
        self.naive.rows = {new[seq]: rows for seq, rows in self.naive.rows.items()}
        self.naive.salts = {new[seq]: salt for seq, salt in self.naive.salts.items()}
        return new

    def step(self, tokens: dict[int, list[int]]) -> dict[int, np.ndarray]:
        """Appends tokens; the logits behind the last one of each. Every key, value and logit is the same in both."""
        slots = {seq: self.manager.slots(seq).tolist() for seq in self.naive.rows}
        appends = [Append(seq, tokens=new) for seq, new in tokens.items()]
        with self.manager.begin_step(appends, self.engine.memory) as step:
            self.naive.update()
            got = self.engine.outputs(step)
            order = [list(tokens)[append] for append in step.order]
            computed = self._append(step, order, tokens)
            keys, live = self._keys(step, order, computed, slots)
            expected = self._run(step, computed, keys)
        for name, array in expected.items():
            of_keys = name.startswith(("key_", "value_"))
            at = live if of_keys else slice(None)
            assert_same_bits(name, np.ascontiguousarray(got[name][at]), np.ascontiguousarray(array[at]))
        for seq, rows in self.naive.rows.items():
            assert self.manager.positions(seq).tolist() == [row.position for row in rows]
        ends = np.cumsum([sum(owner == seq for owner, _ in computed) for seq in order])
        return {seq: got["logits"][end - 1] for seq, end in zip(order, ends)}

    def _append(self, step: Step, order: list[int], tokens: dict[int, list[int]]) -> list[tuple[int, Row]]:
        """Gives the emulation its new rows; returns those that the step computes, with their sequences."""
        computed = []
        for entry, (seq, cached) in enumerate(zip(order, step.cached.tolist())):
            rows = self._found(step, entry, tokens[seq][:cached])
            first = self.naive.next_position(seq) + cached
            new = [Row(first + i, first + i, None, None) for i in range(len(tokens[seq]) - cached)]
            for i, row in enumerate(new if not self.naive.rows[seq] else []):
                self._computed.setdefault(tuple(tokens[seq][: cached + i + 1]), []).append(row)
            self.naive.append(seq, rows + new)
            computed += [(seq, row) for row in new]
            self.cached += cached
        return computed

    def _found(self, step: Step, entry: int, tokens: list[int]) -> list[Row]:
        """The rows of a prompt's cached beginning: each must be one that was computed for the same tokens."""
        found = []
        for t in range(len(tokens)):
            page_size = self._places["page_size"]
            slot = step.cachestarts[entry, t // page_size] + t % page_size
            stored, *scale = self.engine.cache.rows(np.array([slot]))
            stored = unpacked(stored, self._format)
            both = decode(stored, scale[0] if scale else None, self._format, np.float32)[0]  # (L, 2, H, Dh)
            same = [
                row
                for row in self._computed[tuple(tokens[: t + 1])]
                if (row.key == both[:, 0]).all() and (row.value == both[:, 1]).all()
            ]
            assert same, f"row {t} of a cached beginning is no row of those tokens"
            found.append(Row(t, t, same[0].key, same[0].value))
        return found

    def _keys(
        self, step: Step, order: list[int], computed: list[tuple[int, Row]], slots: dict[int, list[int]]
    ) -> tuple[list[dict[int, Row]], np.ndarray]:
        """What attention reads: for each key its row by each sequence that has it; and which keys any has."""
        if self._places.get("mode") != "cells":
            keys = [{seq: row} for seq in order for row in self.naive.rows[seq]]
            return keys, np.arange(len(keys))
        written = {id(row): int(step.cachestarts[0]) + i for i, (_, row) in enumerate(computed)}
        keys = [{} for _ in range(int(step.start_pos[1]))]
        for seq, rows in self.naive.rows.items():
            new = [written[id(row)] for row in rows if id(row) in written]
            for cell, row in zip(slots[seq] + new, rows):
                keys[cell][seq] = row
        return keys, np.array([cell for cell, owners in enumerate(keys) if owners])

    def _run(self, step: Step, computed: list[tuple[int, Row]], keys: list[dict[int, Row]]) -> dict[str, np.ndarray]:
        """The emulated decoder's outputs; the new rows get their keys and values."""
        decoder = self._decoder
        nothing = np.zeros((decoder.num_layer, decoder.num_kv_heads, decoder.head_dim), np.float32)
        state = [Row(-1, -1, nothing, nothing)] + [row for _, row in computed]
        state += [row for owners in keys for row in owners.values() if row.key is not None]
        slot_of = {id(row): slot for slot, row in enumerate(state)}
        one_of = [next(iter(owners.values()), state[0]) for owners in keys]
        feeds = dict(
            token_ids=np.array(step.token_ids),
            positions=np.array([row.position for _, row in computed]),
            seqstarts=np.array(step.seqstarts),
            stored_slots=np.array([slot_of[id(row)] for _, row in computed]),
            loaded_slots=np.array([slot_of[id(row)] for row in one_of]),
            key_positions=np.array([row.position for row in one_of]),
            visible=np.array(
                [[seq in key and key[seq].position <= row.position for key in keys] for seq, row in computed]
            ),
        )
        for layer in range(decoder.num_layer):
            for name, kind in (("keys", "key"), ("values", "value")):
                rows = [getattr(row, kind) for row in state]
                feeds[f"{name}_{layer}"] = np.stack([nothing[layer] if x is None else x[layer] for x in rows])
        names = [output.name for output in self._emulated.get_outputs()]
        wanted = {x.name for x in self._emulated.get_inputs()}
        outputs = dict(zip(names, self._emulated.run(names, {k: v for k, v in feeds.items() if k in wanted})))
        after = {
            name: np.stack([outputs.pop(f"{name}_{layer}_after") for layer in range(decoder.num_layer)], axis=1)
            for name in ("keys", "values")
        }
        for slot, (_, row) in enumerate(computed, start=1):
            row.key, row.value = after["keys"][slot], after["values"][slot]
        return outputs
