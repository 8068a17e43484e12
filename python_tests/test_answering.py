"""What `make run` ends with, on a tiny model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import answering
from tiny_models import write_gguf


def test_the_example_checks_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It answers in every format; where an answer is another in the batch, it ends with 1."""
    monkeypatch.setattr(sys, "argv", ["answering.py", str(write_gguf(tmp_path / "model.gguf")), "--new-tokens", "4"])
    assert answering.main() == 0
    said = capsys.readouterr().out
    assert [said.count(question) for question in answering.QUESTIONS] == [len(answering.FORMATS)] * 5
    assert "20 tokens written" in said and said.count("bytes for a token's keys and values") == 3

    generate = answering.Engine.generate
    alone = "is something else"
    monkeypatch.setattr(
        answering.Engine,
        "generate",
        lambda engine, prompts, **options: generate(engine, [*prompts, alone] if prompts[1:] else [alone], **options),
    )
    assert answering.main() == 1 and "wrong: alone, the first answer is" in capsys.readouterr().out
