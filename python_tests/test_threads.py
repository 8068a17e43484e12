"""Several threads: on one session, on one cache, inside one call; the bits are always those of one thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import onnxruntime
import pytest

from compare import assert_same_arrays, assert_same_outputs
from kvcache import create_session
from layers import layers_model, run_layers, run_layers_one_by_one
from node import quiet_options
from ragged import RaggedCache
from setting import FLOAT, HALF, INT4, INT8, Memory, Setting

SETTINGS = [
    Setting(FLOAT, FLOAT, num_repeat=2),
    Setting(HALF, FLOAT, cache_mode=1, page_size=7, cache_layout=3),
    Setting(HALF, INT8, HALF, quant_bit=8, cache_layout=1),
    Setting(FLOAT, INT4, FLOAT, quant_bit=4, cache_mode=1, page_size=16, cache_layout=2),
]

Steps = list[dict[str, np.ndarray]]


def decode_steps(setting: Setting, random: np.random.Generator, ragged: RaggedCache, members: list[int]) -> Steps:
    """The inputs of a prefill and then single tokens, up to what the members have slots for."""
    left = min(ragged.sequences[member].capacity for member in members)
    seqlens = [left // 2] + [1] * (left - left // 2)
    return [
        setting.current(random, seqlen * len(members)) | ragged.step(random, members, [seqlen] * len(members))
        for seqlen in seqlens
    ]


def run_steps(
    setting: Setting,
    session: onnxruntime.InferenceSession,
    steps: Steps,
    memory: Memory,
    barrier: Barrier | None = None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Runs the steps; with a barrier, in step with other threads."""
    outputs = []
    for inputs in steps:
        if barrier is not None:
            barrier.wait(timeout=60)
        outputs.append(setting.run(inputs, memory, session))
    return outputs


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_one_session_and_a_cache_for_each_thread(setting: Setting, threads: int) -> None:
    """Threads that call one session at once, each with a cache of its own, do not disturb one another."""
    session = create_session(setting.model, quiet_options(threads=2))
    jobs = []
    for seed in range(threads):
        random = np.random.default_rng(seed)
        ragged = RaggedCache(random, [60, 60, 60], setting.page_size if setting.cache_mode else None)
        memory = setting.memory(random, ragged.max_t)
        jobs.append((decode_steps(setting, random, ragged, [0, 1, 2]), memory))
    expected_memory = [memory.copy() for _, memory in jobs]
    expected = [run_steps(setting, session, steps, memory) for (steps, _), memory in zip(jobs, expected_memory)]

    barrier = Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        got = list(pool.map(lambda job: run_steps(setting, session, *job, barrier), jobs))
    for i, (_, memory) in enumerate(jobs):
        assert_same_outputs(got[i], expected[i])
        assert_same_arrays(memory.arrays, expected_memory[i].arrays)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_one_cache_with_slots_for_each_thread(setting: Setting) -> None:
    """Two threads store into slots of their own in one cache."""
    session = create_session(setting.model, quiet_options(threads=2))
    random = np.random.default_rng(11)
    ragged = RaggedCache(random, [60, 60, 60, 60], setting.page_size if setting.cache_mode else None)
    memory = setting.memory(random, ragged.max_t)
    jobs = [decode_steps(setting, random, ragged, members) for members in ([0, 2], [1, 3])]
    expected_memory = memory.copy()
    expected = [run_steps(setting, session, steps, expected_memory) for steps in jobs]

    barrier = Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda steps: run_steps(setting, session, steps, memory, barrier), jobs))
    for a, b in zip(got, expected):
        assert_same_outputs(a, b)
    assert_same_arrays(memory.arrays, expected_memory.arrays)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_layers_of_one_cache_in_parallel_execution_mode(setting: Setting) -> None:
    """ONNX Runtime may run independent nodes at the same time; layers of one cache do not meet."""
    setting = replace(setting, num_layer=6)
    random = np.random.default_rng(12)
    ragged = RaggedCache(random, [200, 100], setting.page_size if setting.cache_mode else None)
    before = setting.memory(random, ragged.max_t)
    index = ragged.step(random, [0, 1], [200, 100])
    currents = [setting.current(random, 300) for _ in range(setting.num_layer)]
    options = quiet_options(threads=2)
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 3
    session = create_session(layers_model(setting), options)

    expected_memory = before.copy()
    expected = run_layers_one_by_one(setting, currents, index, expected_memory)
    for _ in range(5):
        memory = before.copy()
        assert_same_outputs(run_layers(session, currents, index, memory), expected)
        assert_same_arrays(memory.arrays, expected_memory.arrays)


class LargeCall:
    """A call of several MiB, which is worth splitting."""

    def __init__(self, setting: Setting):
        self.setting = replace(setting, num_heads=4, head_dim=128, num_layer=2, layer_idx=1)
        seqlens = [1500, 1, 700, 0, 33]
        random = np.random.default_rng(13)
        ragged = RaggedCache(random, seqlens, setting.page_size if setting.cache_mode else None)
        self.before = self.setting.memory(random, ragged.max_t)
        self.inputs = self.setting.current(random, sum(seqlens)) | ragged.step(random, list(range(5)), seqlens)
        assert self.inputs["current_key"].nbytes > 2**21

    def run(self, session: onnxruntime.InferenceSession) -> tuple[tuple[np.ndarray, np.ndarray], Memory]:
        """Outputs and memory of a run of its own."""
        memory = self.before.copy()
        return self.setting.run(self.inputs, memory, session), memory


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_number_of_threads_does_not_change_a_bit(setting: Setting) -> None:
    """1, 2 and 3 threads of ONNX Runtime's own pool, and that pool at work for two callers at once."""
    large = LargeCall(setting)
    sessions = [create_session(large.setting.model, quiet_options(threads)) for threads in (1, 2, 3)]
    expected, expected_memory = large.run(sessions[0])
    with ThreadPoolExecutor(2) as pool:
        results = [large.run(sessions[1]), *pool.map(large.run, [sessions[2]] * 2)]
    for got, memory in results:
        assert_same_outputs([got], [expected])
        assert_same_arrays(memory.arrays, expected_memory.arrays)
