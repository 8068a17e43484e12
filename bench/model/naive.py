"""transformers on torch, as a program uses it that asks for nothing: float32 weights, and a cache that grows.

Packages of peers need not be installed: PEERS has further folders to look for them.
"""

from __future__ import annotations

import os
import site
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

for folder in os.environ.get("PEERS", "").split():
    site.addsitedir(folder)


def titled(package: str, *needed: str) -> str | None:
    """A package's name and version; None where it is not installed, or one that it needs."""
    try:
        for other in needed:
            version(other)
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None


TITLE = titled("transformers", "torch")


class OneSequence:
    """A peer that has one sequence: `step` appends to it, `_held` counts its tokens, `_keep` keeps the first ones."""

    def prompt(self, sequence: int, tokens: list[int]) -> np.ndarray:
        """Computes a prompt; the logits of its last token."""
        self._keep(0)
        return self.step({sequence: tokens})[0]

    def place(self, sequences: int, source: int, tokens: list[int]) -> None:
        """Goes back, or on, to the rows of `tokens`, with which the sequence begins."""
        held = self._held()
        if held < len(tokens):
            self.step({source: tokens[held:]})
        else:
            self._keep(len(tokens))


class Transformers(OneSequence):
    """The model as its authors publish it."""

    def __init__(self, source: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        path = Path(source)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        self._model.eval()
        self._cache: Any = None

    def step(self, tokens: dict[int, list[int]]) -> np.ndarray:
        """Appends tokens to the sequence; the logits of the last."""
        [appended] = tokens.values()
        with self._torch.inference_mode():
            ids = self._torch.tensor([appended])
            found = self._model(input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = found.past_key_values
        return found.logits[0].numpy()

    def _held(self) -> int:
        return self._cache.get_seq_length() if self._cache else 0

    def _keep(self, tokens: int) -> None:
        if not tokens:
            self._cache = None
        elif (held := self._held()) > tokens:
            self._cache.crop(tokens - held)  # so many fewer
