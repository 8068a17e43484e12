"""Layers with a window keep a window: a cache for each group of layers, one engine, the same bits as one cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from kvcache_ops import KvCacheError, models
from kvcache_ops.manager import Append, CapacityError, tier
from kvcache_ops.serve._metrics import Metrics

from compare import refused
from engines import engine
from tiny_exports import CONTEXT, Graph, write_export
from tiny_models import SIZES, Run, random_tensors, write_gguf

WINDOW, PAGE = 20, 8
FIELDS = {"gemma3.attention.sliding_window": WINDOW, "gemma3.attention.sliding_window_pattern": [True, True, False]}
LAYERS = SIZES | dict(layers=3)
TEXT = [(31 * i + i // 7) % 250 for i in range(160)]
PROMPTS = [TEXT, TEXT[:70], TEXT[:96], [5, 6, 7], TEXT[20:90], [9, 8] * 40]
KEPT = dict(max_batch=3, token_budget=24, window_tokens=3 * (WINDOW + 2 * PAGE) + 24)


def source(folder: Path) -> Path:
    """Of Gemma 3, two layers of three with a window."""
    tensors = random_tensors("gemma3", sizes=LAYERS)
    return write_gguf(folder / "model.gguf", family="gemma3", tensors=tensors, sizes=LAYERS, fields=FIELDS)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The model with groups, and with one cache of all layers."""
    file = source(folder := tmp_path_factory.mktemp("groups"))
    options = dict(page_size=PAGE)
    return [models.build(file, folder / str(kind), layer_groups=kind, **options) for kind in (True, False)]


@pytest.fixture(scope="module")
def expected(paths: list[Path]) -> list[list[int]]:
    """The answers of one cache."""
    return [request.answer for request in engine(paths[1]).generate(PROMPTS, max_new_tokens=24)]


@pytest.mark.parametrize(("cache", "attention"), [("float32", "fused"), ("int8", "packed"), ("int4", "fused")])
def test_logits_are_the_same_bits(tmp_path: Path, cache: str, attention: str) -> None:
    """Beyond the window, whose freed pages others have filled."""
    file = source(tmp_path)
    options = dict(page_size=PAGE, attention=attention, cache=cache)
    one = Run(models.build(file, tmp_path / "one", layer_groups=False, **options))
    groups = Run(models.build(file, tmp_path / "groups", **options))
    groups.caches = groups.model.caches(512, batch=2, step_tokens=40, window_tokens=100)
    groups.manager, groups.memory = groups.caches.manager, groups.caches.memory
    assert [cache.spec.max_tokens for cache in groups.caches.caches] == [512, 112]
    sequences = []
    for run in (one, groups):
        a, b = run.manager.create(), run.manager.create()
        steps = [{a: TEXT[first : first + 39], b: [first]} for first in range(0, 117, 39)]
        sequences.append([run.step(step) for step in steps + [{b: TEXT[:40], a: [token]} for token in TEXT[117:121]]])
    assert all(np.array_equal(*logits) for logits in zip(*sequences))
    groups.manager.check()


@pytest.mark.parametrize(
    "options",
    [{}, KEPT, KEPT | {"max_tokens": 208}, KEPT | {"prompt_lookup": 4, "window_tokens": 200}],
    ids=["room", "windows", "preempted", "guesses"],
)
def test_answers_are_those_of_one_cache(paths: list[Path], expected: list[list[int]], options: dict[str, int]) -> None:
    """In company, in chunks, preempted, with guesses; and once more, with what is cached."""
    groups = engine(paths[0], **options)
    for _ in range(2):
        requests = groups.generate(PROMPTS, max_new_tokens=24)
        assert [(request.error, request.answer) for request in requests] == [(None, answer) for answer in expected]
        groups.manager.check()
    assert groups.manager.stats()["used"] == 0 == groups.caches.managers[1].stats()["sequences"]


def test_pages_behind_the_window_are_free_again(paths: list[Path]) -> None:
    """A sequence holds the pages of its window, however long it is; what both caches hold is counted."""
    groups = engine(paths[0], threaded=False, **KEPT)
    request, held = groups.submit(TEXT, max_new_tokens=60), []
    while request.finish is None:
        groups.step()
        held.append([manager.stats()["used"] for manager in groups.caches.managers])
    assert max(used for used, _ in held) == 224 and max(used for _, used in held) <= WINDOW + 2 * PAGE
    sizes = [cache.spec for cache in groups.caches.caches]
    assert groups.caches.nbytes == sum(spec.max_tokens * spec.bytes_per_token for spec in sizes)
    metrics = Metrics()
    metrics.watch(groups, lambda: 0)
    assert f"kvcache_cache_bytes {groups.caches.nbytes:.1f}" in metrics.text().decode()
    kept = [manager.stats()["cached"] for manager in groups.caches.managers]
    assert f'kvcache_cache_slots{{state="cached"}} {sum(kept):.1f}' in metrics.text().decode()
    assert groups.caches.held_bytes == sum(n * spec.bytes_per_token for n, spec in zip(kept, sizes)) > 0


def test_a_prefix_is_found_as_far_as_each_group_has_it(paths: list[Path]) -> None:
    """The last window of it is enough; where that has gone, it is what is before."""
    groups = engine(paths[0], **KEPT)
    found = lambda prompt: groups.generate([prompt], max_new_tokens=1)[0].cached  # noqa: E731
    assert [found(TEXT), found(TEXT), found([*TEXT[:150], 3])] == [0, 152, 144]
    groups.generate([[3, 1] * 60, [4, 1] * 60], max_new_tokens=1)  # take the windows' pages, and not the others'
    assert groups.manager.stats()["cached"] > 300 and found(TEXT) == 0
    assert found(TEXT) == 152, "it was stored again"


def test_prompts_of_which_each_group_has_another(paths: list[Path]) -> None:
    """They are computed whole, in one order: the order of a step's sequences depends on what is found."""
    caches = engine(paths[0]).caches
    known = [TEXT[:16], TEXT[100:116]]
    for manager, memory, tokens in zip(caches.managers, caches.memory, known):
        with manager.begin_step([Append(sequence := manager.create(), tokens=tokens)], memory):
            pass
        manager.free(sequence)
    one, other = caches.manager.create(), caches.manager.create()
    appends = [Append(one, tokens=known[1] + [1, 2, 3, 4]), Append(other, tokens=known[0] + [1])]
    with caches.manager.begin_step(appends, caches.memory) as step:
        assert step.found() == [[0, 0]] * 2
        assert step.token_ids.tolist() == [token for append in appends for token in append.tokens]


def test_both_groups_have_a_step_or_none(paths: list[Path]) -> None:
    """Without room for the windows, or with another cache's memory, nothing changes, and a smaller step goes on."""
    run = Run(paths[0])
    caches = run.model.caches(512, batch=1, step_tokens=32, window_tokens=64)
    manager, memory = caches.manager, caches.memory
    sequence, other, third = (manager.create() for _ in range(3))
    for s, tokens in ((sequence, TEXT[:30]), (other, TEXT[30:60])):
        with manager.begin_step([Append(s, tokens=tokens)], memory):
            pass
    before = [each.stats() for each in caches.managers]
    with pytest.raises(CapacityError):
        manager.begin_step([Append(third, tokens=TEXT[60:90])], memory)
    with pytest.raises(KvCacheError):
        manager.begin_step([Append(sequence, tokens=[1])], [memory[0], memory[0]])
    assert [each.stats() for each in caches.managers] == before
    assert [each.seq_len(sequence) for each in caches.managers] == [30, 30]
    with pytest.raises(ZeroDivisionError), manager.begin_step([Append(sequence, tokens=[1])], memory):
        _ = 1 // 0
    with manager.begin_step([Append(sequence, tokens=[1])], memory):
        pass
    assert [each.seq_len(sequence) for each in caches.managers] == [31, 31]
    manager.check()


def test_a_context_that_is_outgrown(paths: list[Path]) -> None:
    """Half of it goes, and what is left is computed again: as with one cache whose keys cannot be rotated."""
    answers = []
    for path in paths:
        [request] = engine(path, max_tokens=96, keep=4).generate([TEXT[:80]], max_new_tokens=50)
        answers.append((request.finish, request.shifted, request.answer))
    assert answers[0] == answers[1] and answers[0][:2] == ("length", 46)


def test_tiers_keep_all(paths: list[Path], expected: list[list[int]], tmp_path: Path) -> None:
    """Prefixes come back in all groups, from another engine's files."""
    for cached in (0, 152):
        groups = engine(paths[0], tiers=[tier("host:64M"), tier(f"file:{tmp_path},64M")])
        [request] = groups.generate([TEXT], max_new_tokens=24)
        assert (request.answer, request.cached) == (expected[0], cached) and groups.close(30)
        assert [cache.spec.max_tokens for cache in groups.caches.caches] == [1024, 1024]
        assert sum(used["hits"] for used in groups.manager.tiers()) == 2 * cached // PAGE


def test_gemma_3_at_32k_takes_a_quarter(tmp_path: Path) -> None:
    """15 of 18 layers see 512 tokens: by default, and for one answer."""
    sizes = dict(hidden=32, ffn=32, heads=2, kv_heads=1, head_dim=32, layers=18)
    fields = {"gemma3.attention.sliding_window": 512, "gemma3.context_length": 32768}
    tensors = random_tensors("gemma3", sizes=sizes)
    file = write_gguf(tmp_path / "model.gguf", family="gemma3", tensors=tensors, sizes=sizes, fields=fields)
    path = models.build(file, tmp_path / "model")
    assert models.load(path).layer_groups.of == (1, 1, 1, 1, 1, 0) * 3
    before = 32768 * models.load(path).cache.bytes_per_token
    ratios = [engine(path, 32768, max_batch=batch).caches.nbytes / before for batch in (16, 1)]
    assert ratios[0] < 0.25 and ratios[1] < 0.2


def test_all_layers_with_a_window(tmp_path: Path) -> None:
    """An export's, without a group that keeps all: prompts and answers are longer than the cache."""
    windowed = write_export(tmp_path / "export", Graph(attention=(dict(local_window_size=5),) * 2))
    options = dict(cache="float32", page_size=4)
    groups, one = (models.build(windowed, tmp_path / str(kind), layer_groups=kind, **options) for kind in (True, False))
    answers = []
    for path, max_tokens in ((groups, 40), (one, 256)):
        small = engine(path, max_tokens, token_budget=16)
        assert small.context_length == CONTEXT
        requests = small.generate([TEXT[:50], TEXT[:50], [1, 2]], max_new_tokens=14)
        answers.append([(request.error, request.answer) for request in requests])
    assert answers[0] == answers[1]


def test_what_groups_refuse(paths: list[Path], tmp_path: Path) -> None:
    """By name, before anything changes; a model that was built before there were groups is one."""
    groups = engine(paths[0], **KEPT)
    for call in (lambda: groups.save(tmp_path / "session", TEXT), lambda: groups.load(tmp_path / "session")):
        with refused("layer_groups", "layers with a window keep that alone, expected all tokens"):
            call()
    assert not list(tmp_path.iterdir()) and groups.manager.stats()["cached"] == 0
    with refused("layer_groups", "layers have 2 caches, expected one"):
        groups.model.manager(groups.cache.spec)
    with refused("engine_range", "window_tokens is 51, expected at least 52"):
        engine(paths[0], token_budget=24, window_tokens=51)
    proto = onnx.load(paths[1])
    [facts] = [entry for entry in proto.metadata_props if entry.key == "kvcache_ops.model"]
    facts.value = facts.value.replace('"layer_groups": null, ', "")
    onnx.save(proto, paths[1])
    assert engine(paths[1]).generate([[1, 2]], max_new_tokens=1)[0].error is None
