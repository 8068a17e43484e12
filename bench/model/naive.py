"""transformers on torch, as a program uses it that asks for nothing: float32 weights, and a cache that grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from packages import titled

TITLE = titled("transformers", "torch")


class Transformers:
    """One sequence."""

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

    def prompt(self, sequence: int, tokens: list[int]) -> np.ndarray:
        """Computes a prompt; the logits of its last token."""
        self._cache = None
        return self.step({sequence: tokens})[0]

    def place(self, sequences: int, source: int, tokens: list[int]) -> None:
        """Goes back, or on, to the rows of `tokens`, with which the sequence begins."""
        held = self._cache.get_seq_length() if self._cache else 0
        if held < len(tokens):
            self.step({source: tokens[held:]})
        elif not tokens:
            self._cache = None
        elif held > len(tokens):
            self._cache.crop(len(tokens) - held)  # so many fewer
