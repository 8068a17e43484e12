"""A session saved, the process ended, the session resumed without computing its prompt again; `make run` runs this.

One process answers a question in one go. A second one begins the same, saves its session and ends; a third one loads
the session and goes on. Its tokens and its logits must be those of the first, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from decoder import Decoder
from engine import Engine
from kvcache import FORMATS
from questions import prompts

DECODER = Decoder(num_layer=2)
FORMAT = "int8"
BEFORE, AFTER = 20, 30  # tokens generated before the session is saved, and after it is resumed


def begin(engine: Engine, steps: int) -> tuple[int, list[int]]:
    """Computes a prompt and some tokens; the sequence, and all tokens, the last of which is not stored yet."""
    seq, tokens = engine.manager.create(), prompts(1)[0]
    new = tokens
    for _ in range(steps):
        new = [int(engine.decode({seq: new})[seq][-1].argmax())]
        tokens = tokens + new
    return seq, tokens


def go_on(engine: Engine, seq: int, tokens: list[int], steps: int) -> tuple[list[int], np.ndarray]:
    """Some tokens more, and the logits that chose them."""
    logits = []
    for _ in range(steps):
        logits.append(engine.decode({seq: tokens[-1:]})[seq][-1])
        tokens = [*tokens, int(logits[-1].argmax())]
    return tokens, np.stack(logits)


def begin_and_save(folder: Path) -> None:
    """What the second process does."""
    engine = Engine(DECODER, FORMATS[FORMAT], max_t=512)
    seq, tokens = begin(engine, BEFORE)
    engine.manager.save(folder / "session.kv", engine.memory)
    (folder / "tokens.json").write_text(json.dumps(tokens))
    size = (folder / "session.kv").stat().st_size
    print(f"  saved {engine.manager.seq_len(seq)} rows in {size} bytes, and ended", flush=True)


def resume(folder: Path) -> None:
    """What the third process does, in a cache of another size and other pages."""
    engine = Engine(DECODER, FORMATS[FORMAT], max_t=384, page_size=8)
    (seq,) = engine.manager.load(folder / "session.kv", engine.memory)
    rows = engine.manager.seq_len(seq)
    tokens, logits = go_on(engine, seq, json.loads((folder / "tokens.json").read_text()), AFTER)
    np.savez(folder / "resumed.npz", tokens=tokens, logits=logits)
    print(f"  resumed with {rows} rows, computed {len(logits)}", flush=True)


def main() -> int:
    """Runs all three; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=("begin", "resume"), help="be the second or the third process")
    parser.add_argument("--folder", type=Path, help="where those two meet")
    arguments = parser.parse_args()
    if arguments.part:
        {"begin": begin_and_save, "resume": resume}[arguments.part](arguments.folder)
        return 0
    print("\na session saved, and resumed by another process")
    with tempfile.TemporaryDirectory() as folder:
        for part in ("begin", "resume"):
            subprocess.run([sys.executable, __file__, "--part", part, "--folder", folder], check=True)
        resumed = np.load(Path(folder) / "resumed.npz")
        tokens, logits = resumed["tokens"], resumed["logits"]
    engine = Engine(DECODER, FORMATS[FORMAT], max_t=512)
    expected_tokens, expected_logits = go_on(engine, *begin(engine, BEFORE), AFTER)
    same = tokens.tolist() == expected_tokens and logits.tobytes() == expected_logits.tobytes()
    print(f"  {AFTER} tokens and their logits, bit for bit those of one process: {'yes' if same else 'NO'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
