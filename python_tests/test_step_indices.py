"""`step_indices`: lengths and page lists become index inputs."""

from __future__ import annotations

import numpy as np
import pytest
from kvcache_ops import StepIndices, step_indices

from compare import refused


def as_lists(indices: StepIndices) -> dict[str, list]:
    """All of them, checked to be int64."""
    assert all(array.dtype == np.int64 for array in indices)
    return {name: array.tolist() for name, array in indices._asdict().items()}


def test_neighboring_slots() -> None:
    """A slot for each sequence: offset mode."""
    indices = step_indices([1, 1, 4, 0], [10, 0, 3, 2], cachestarts=np.array([40, 0, 8, 3]))
    assert as_lists(indices) == {
        "seqstarts": [0, 1, 2, 6, 6],
        "kvstarts": [0, 11, 12, 19, 21],
        "cachestarts": [40, 0, 8, 3],
        "start_pos": [10, 0, 3, 2],
        "max_seqlen": [4],
        "max_kvlen": [11],
    }
    assert indices.decoding_batches.tolist() == [2]


def test_pages() -> None:
    """Rows of different lengths are filled up with -1, to a number of columns if that is given."""
    pages = [[4], [-1], np.array([0, 1, 3])]
    indices = step_indices([2, 0, 1], [0, 0, 33], pages=pages, page_size=16)
    assert indices.cachestarts.tolist() == [[64, -1, -1], [-1, -1, -1], [0, 16, 48]]
    slots = indices.cachestarts.tolist()
    assert step_indices([2, 0, 1], [0, 0, 33], page_slots=slots, page_size=16).cachestarts.tolist() == slots
    assert step_indices([2], [0], page_slots=[[65]], aligned=False).cachestarts.tolist() == [[65]]
    wide = step_indices([2, 0, 1], [0, 0, 33], pages=pages, page_size=16, max_pages=4)
    assert wide.cachestarts.tolist() == [[*row, -1] for row in indices.cachestarts.tolist()]


def test_no_sequences() -> None:
    """An empty batch is legal, in both modes."""
    assert as_lists(step_indices([], [], cachestarts=[]))["seqstarts"] == [0]
    assert step_indices([], [], pages=[], page_size=8, max_pages=3).cachestarts.shape == (0, 3)
    assert step_indices([], [], pages=[], page_size=8).decoding_batches.tolist() == [0]
    assert step_indices([1, 1], [0, 0], pages=[[0], [1]], page_size=8).decoding_batches.tolist() == [2]


PAGED = {"cachestarts": None, "page_size": 8}


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (([1], [0, 1]), "indices_length", "start_pos has 2 sequences, expected 1"),
        (([1, -1], [0, 1]), "indices_range", "seqlens is -1 at batch 1"),
        (([1], [-2]), "indices_range", "start_pos is -2 at batch 0"),
        (([2**62], [2**62]), "indices_range", "do not fit in 64 bits"),
        (([1.5], [0]), "indices_type", "seqlens is [1.5]"),
        (([[1]], [0]), "indices_type", "seqlens is [[1]]"),
        (([[1], [1, 2]], [0]), "indices_type", "seqlens is"),
        (([2**70], [0]), "indices_type", "seqlens is"),
        (([True], [0]), "indices_type", "seqlens is [True]"),
        (([1], [0], {"cachestarts": None}), "indices_slots", "page_slots, got none of them"),
        (([1], [0], {"pages": [[0]]}), "indices_slots", "got cachestarts and pages"),
        (([1], [0], {"cachestarts": [0, 1]}), "indices_length", "cachestarts has 2 sequences, expected 1"),
        (([1], [0], PAGED | {"pages": []}), "indices_length", "pages has 0 sequences"),
        (([1], [0], PAGED | {"pages": [[0]], "page_size": None}), "indices_slots", "page_size is None"),
        (([1], [0], PAGED | {"pages": [[0]], "page_size": 0}), "indices_range", "page_size is 0"),
        (([1], [0], PAGED | {"pages": [[0]], "page_size": 8.0}), "indices_type", "page_size is 8.0"),
        (([1], [0], PAGED | {"pages": [[0, -2]]}), "indices_range", "pages is -2 at batch 0, page 1"),
        (([1], [0], PAGED | {"pages": [[2**62]]}), "indices_range", "a page's number, 0 to 1152921504606846975"),
        (([1], [0], PAGED | {"page_slots": [[8, 3]]}), "indices_alignment", "page_slots is 3 at batch 0, page 1"),
        (([1], [0], PAGED | {"pages": [[0, 8]], "max_pages": 1}), "indices_range", "at least 2"),
        (([1], [0], PAGED | {"pages": 5}), "indices_type", "pages is 5, expected a list of lists"),
        (([1], [0], PAGED | {"pages": [[0]], "max_pages": 2.0}), "indices_type", "max_pages is 2.0"),
        (([1], [0], PAGED | {"pages": [["0"]]}), "indices_type", "pages[0] is ['0']"),
    ],
)
def test_what_is_refused(arguments: tuple, kind: str, text: str) -> None:
    """Lengths that do not agree, and values that are no lengths."""
    seqlens, start_pos, *more = arguments
    slots = {"cachestarts": [0] * len(start_pos)} | (more[0] if more else {})
    with refused(kind, text):
        step_indices(seqlens, start_pos, **slots)
