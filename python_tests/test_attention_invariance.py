"""The output of a token depends only on its own sequence, bit for bit, whatever else is different about a call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import onnxruntime
import pytest

from attention_layers import ROWS, layers, layers_model, run_layers
from attention_node import FORMATS, Arrays, Attention, random_mask, random_rows
from compare import assert_same_arrays, assert_same_bits
from kvcache import LAYOUT_AXES, create_session
from node import quiet_options
from ragged import RaggedCache
from setting import FLOAT, HALF, INT4, INT8, Memory, Setting

PAST = [300, 0, 17, 130, 1]
SEQLENS = [1, 40, 3, 1, 70]


class Sequences:
    """Sequences that each have rows of their own: the same rows can be given in calls of any batch, order and cache."""

    def __init__(self, attention: Attention, past: list[int] = PAST, seqlens: list[int] = SEQLENS):
        random = np.random.default_rng(21)
        self.attention = attention
        self.past, self.seqlens = past, seqlens
        self.rows: list[Arrays] = []
        for count in (a + b for a, b in zip(past, seqlens)):
            setting = attention.cached
            shapes = {name: (count, setting.num_heads, setting.head_dim) for name in ("current_key", "current_value")}
            shapes |= dict(query=(count, attention.num_heads, setting.head_dim))
            self.rows.append({name: random_rows(random, shape, setting.t1) for name, shape in shapes.items()})

    def run(
        self,
        order: list[int],
        attention: Attention | None = None,
        *,
        seed: int = 0,
        session: onnxruntime.InferenceSession | None = None,
        chunk: int | None = None,
        mask: list[np.ndarray] | None = None,
    ) -> dict[int, np.ndarray]:
        """The outputs of the sequences' last tokens, from calls that hold these sequences in this order: a
        `KeyValueCache` stores what is past, then comes one call for the rest, or several of `chunk` tokens of each.
        `seed` places them in the cache."""
        attention = attention or self.attention
        random = np.random.default_rng(seed)
        capacities = [a + b for a, b in zip(self.past, self.seqlens)]
        paged = attention.cached.cache_mode == 1
        ragged = RaggedCache(random, capacities, attention.cached.page_size if paged else None)
        memory = attention.cached.memory(random, ragged.max_t)
        past = [self.past[i] for i in order]
        stored = {name: np.concatenate([self.rows[i][name][:n] for i, n in zip(order, past)]) for name in ROWS[1:]}
        attention.cached.run(stored | ragged.step(random, order, past), memory)
        outputs: dict[int, list[np.ndarray]] = {i: [] for i in order}
        while any(ragged.room(i) for i in order):
            new = [min(ragged.room(i), chunk or ragged.room(i)) for i in order]
            got = self.call(attention, order, new, ragged, random, memory, mask, session)
            for i, rows in zip(order, np.split(got, np.cumsum(new)[:-1])):
                outputs[i].append(rows)
        return {i: np.concatenate(rows) for i, rows in outputs.items()}

    def call(
        self,
        attention: Attention,
        order: list[int],
        new: list[int],
        ragged: RaggedCache,
        random: np.random.Generator,
        memory: Memory,
        mask: list[np.ndarray] | None,
        session: onnxruntime.InferenceSession | None,
    ) -> np.ndarray:
        """One call that stores `new` tokens of each sequence."""
        first = [ragged.sequences[i].length for i in order]
        step = ragged.step(random, order, new)
        inputs = {
            name: np.concatenate([self.rows[i][name][a : a + n] for i, a, n in zip(order, first, new)]) for name in ROWS
        } | step
        inputs |= dict(decoding_batches=np.array([0]))
        if mask is not None:
            shape = (*mask[0].shape[:-2], int(step["seqstarts"][-1]), int(step["kvstarts"][-1]))
            whole = np.full(shape, np.nan, mask[0].dtype)
            for b, i in enumerate(order):
                rows, columns = (slice(*step[name][b : b + 2]) for name in ("seqstarts", "kvstarts"))
                whole[..., rows, columns] = mask[i]
            inputs |= dict(attn_mask=whole)
        return attention.run(inputs, memory, session)


def assert_same_sequences(got: dict[int, np.ndarray], expected: dict[int, np.ndarray]) -> None:
    """Each sequence has the bits that it has elsewhere."""
    for i, rows in got.items():
        assert_same_bits(f"sequence {i}", rows, expected[i])


def of_format(types: tuple, **changes: int) -> Attention:
    """A node of a format: six query heads on two cache heads of 32."""
    return Attention(Setting(*types, num_heads=2, head_dim=32, **changes), group=3)


EVERYONE = list(range(len(PAST)))
every_format = pytest.mark.parametrize("types", FORMATS, ids=lambda types: str(Setting(*types)))


@every_format
def test_the_batch_and_its_order(types: tuple) -> None:
    """Alone, in pairs and in any order; a mask, too, is each sequence's own."""
    sequences = Sequences(of_format(types))
    for rank in (None, 2, 3):
        mask = None if rank is None else masks(sequences, rank)
        expected = sequences.run(EVERYONE, mask=mask)
        for order in ([0], [1], [4], [3, 1], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
            assert_same_sequences(sequences.run(order, mask=mask), expected)


def masks(sequences: Sequences, rank: int) -> list[np.ndarray]:
    """A mask for each sequence's last tokens."""
    random = np.random.default_rng(8)
    found = []
    for past, new in zip(sequences.past, sequences.seqlens):
        step = dict(seqstarts=np.array([0, new]), kvstarts=np.array([0, past + new]), start_pos=np.array([past]))
        step |= dict(query=np.zeros(0, sequences.rows[0]["query"].dtype))
        found.append(random_mask(random, sequences.attention, step, rank)["attn_mask"])
    return found


@every_format
def test_the_layout_the_mode_and_the_pages(types: tuple) -> None:
    """Any layout, offset or paged, pages of any size at any place."""
    sequences = Sequences(of_format(types))
    expected = sequences.run(EVERYONE)
    for cache_layout in range(len(LAYOUT_AXES)):
        for mode, page_size in ((0, 128), (1, 1), (1, 5), (1, 16), (1, 128)):
            attention = of_format(types, cache_layout=cache_layout, cache_mode=mode, page_size=page_size)
            assert_same_sequences(sequences.run(EVERYONE, attention, seed=page_size), expected)


@every_format
def test_the_number_of_threads(types: tuple) -> None:
    """1 to 4 threads of ONNX Runtime's own pool, for one sequence that is worth splitting and short ones."""
    sequences = Sequences(of_format(types), past=[9000, 3, 700], seqlens=[1, 1, 300])
    attention = sequences.attention
    sessions = [create_session(attention.model({}), quiet_options(threads)) for threads in (1, 2, 3, 4)]
    expected = sequences.run([0, 1, 2], session=sessions[0])
    for session in sessions[1:]:
        assert_same_sequences(sequences.run([0, 1, 2], session=session), expected)
        assert_same_sequences(sequences.run([0], session=session), expected)


@every_format
def test_chunks_of_a_prompt(types: tuple) -> None:
    """With the causal mask, a prompt in one call or in several, down to one token at a time."""
    sequences = Sequences(of_format(types), past=[0, 3], seqlens=[90, 41])
    expected = sequences.run([0, 1])
    for chunk in (1, 7, 64):
        assert_same_sequences(sequences.run([0, 1], chunk=chunk), expected)


SETTINGS = [
    Setting(FLOAT, FLOAT),
    Setting(HALF, FLOAT, cache_mode=1, page_size=7, cache_layout=3),
    Setting(HALF, INT8, HALF, quant_bit=8, cache_layout=1),
    Setting(FLOAT, INT4, FLOAT, quant_bit=4, cache_mode=1, page_size=16, cache_layout=2),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_several_threads_on_one_session(setting: Setting) -> None:
    """Each with a cache of its own, in step: none disturbs another."""
    attention = Attention(setting)
    session = create_session(attention.model({}), quiet_options(threads=2))
    jobs = []
    for seed in range(3):
        random = np.random.default_rng(seed)
        ragged = RaggedCache(random, [30, 60], setting.page_size if setting.cache_mode else None)
        memory = setting.memory(random, ragged.max_t)
        steps = [attention.inputs(random, ragged.step(random, [0, 1], new)) for new in [[9, 20], *[[1, 2]] * 20]]
        jobs.append((steps, memory))
    expected_memory = [memory.copy() for _, memory in jobs]
    expected = [
        [attention.run(inputs, memory, session) for inputs in steps]
        for (steps, _), memory in zip(jobs, expected_memory)
    ]

    barrier = Barrier(len(jobs))

    def run(job: tuple[list[Arrays], Memory]) -> list[np.ndarray]:
        outputs = []
        for inputs in job[0]:
            barrier.wait(timeout=60)
            outputs.append(attention.run(inputs, job[1], session))
        return outputs

    with ThreadPoolExecutor(len(jobs)) as pool:
        got = list(pool.map(run, jobs))
    for i, (_, memory) in enumerate(jobs):
        assert_same_arrays(memory.arrays, expected_memory[i].arrays)
        for a, b in zip(got[i], expected[i], strict=True):
            assert_same_bits("attn_output", a, b)


@pytest.mark.parametrize("parallel", [False, True], ids=["sequential", "parallel"])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_many_layers_on_one_cache(setting: Setting, parallel: bool) -> None:
    """A graph of 24 nodes has the bits of one node at a time, also where the runtime runs them at once."""
    attention = Attention(replace(setting, num_layer=24))
    random = np.random.default_rng(12)
    ragged = RaggedCache(random, [50, 20], setting.page_size if setting.cache_mode else None)
    memory = attention.cached.memory(random, ragged.max_t)
    index = attention.inputs(random, ragged.step(random, [0, 1], [50, 20]))
    own = [{name: attention.inputs(random, index)[name] for name in ROWS} for _ in range(24)]
    index = {name: x for name, x in index.items() if name not in ROWS}
    options = quiet_options(threads=2)
    if parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = 3
    session = create_session(layers_model(attention), options)

    expected_memory = memory.copy()
    expected = [layer.run(rows | index, expected_memory) for layer, rows in zip(layers(attention), own)]
    for a, b in zip(run_layers(session, own, index, memory), expected, strict=True):
        assert_same_bits("attn_output", a, b)
    assert_same_arrays(memory.arrays, expected_memory.arrays)
