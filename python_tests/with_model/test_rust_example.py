"""The engine in Rust, examples/ort, on the real model."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import onnxruntime
import pytest
from kvcache_ops import models
from kvcache_ops.engine import Engine

PROMPTS = ["The capital of France is", "Once upon a time", "Water boils at"]


@pytest.mark.parametrize("slots", [1024, 64])
def test_it_gives_the_answers_of_the_engine(tmp_path: Path, slots: int) -> None:
    """Where 64 slots hold one answer at a time, the others wait, and their text is the same."""
    built = models.build(os.environ["KVCACHE_SMOLLM2"], tmp_path / "model")
    [library] = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    command = [os.environ["KVCACHE_GENERATE"], built.parent, *PROMPTS, f"--max-tokens={slots}", "--max-new-tokens=24"]
    run = subprocess.run(
        [*command, f"--onnxruntime={library}"], check=True, capture_output=True, encoding="utf-8", timeout=300
    )
    requests = Engine(built, max_tokens=1024).generate(PROMPTS, max_new_tokens=24, temperature=0)
    for prompt, request in zip(PROMPTS, requests):
        assert f"{prompt}\x1b[1m{request.text}\x1b[0m\n" in run.stdout
