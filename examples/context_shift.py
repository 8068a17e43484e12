"""A conversation that outgrows its context: the oldest half goes, the rest is shifted; `make run` runs this.

A shift keeps the first tokens, removes half of the others, and moves the rest to lower positions, for which their keys
are turned. That is cheaper than to prefill the rest again, and not equal to it: each row was computed from rows that
are gone. So the logits are not compared with a prefill. What is compared:

- the bytes of every row after each shift, with a rotation in numpy;
- the logits, with those of a second cache that holds keys as they were before rotation. A shift leaves its bytes alone,
  and the graph rotates all keys by their present positions, in float32 as the shift does.
"""

from __future__ import annotations

import sys

import numpy as np

from decoder import Decoder
from engine import Engine
from kvcache import FORMATS
from questions import INSTRUCTION, prompts
from recomputation import BOUNDS, Recomputation

PAGE_SIZE = 16
CONTEXT = 192
N_KEEP = len(INSTRUCTION)
NEW_TOKENS = 120


def main() -> int:
    """Talks on until the context has been shifted several times; returns the exit status."""
    decoder = Decoder(num_layer=2)
    roped, raw = (
        Engine(decoder, FORMATS["float32"], max_t=CONTEXT, page_size=PAGE_SIZE, key_form=key_form)
        for key_form in ("roped", "raw")
    )
    seq, same = roped.manager.create(), raw.manager.create()
    new, held, shifts, difference = prompts(1)[0], [], 0, 0.0  # the tokens to append; those whose rows are held
    for _ in range(NEW_TOKENS):
        before = rows_of(roped, seq)
        discarded = shift(roped, seq, len(new))
        if discarded != shift(raw, same, len(new)) or raw.manager.pending(same).any():
            print("wrong: the two caches were not shifted alike, or unrotated keys wait for a turn")
            return 1
        if discarded:
            kept = [row for row in range(len(held)) if not N_KEEP <= row < N_KEEP + discarded]
            if not turned_as_in_numpy(roped, seq, before, kept):
                print("wrong: a row has other bytes than the rotation in numpy gives")
                return 1
            print(f"  {discarded} of {len(held)} rows discarded, the rest kept or turned: every byte as in numpy")
            held, shifts = [held[row] for row in kept], shifts + 1
        logits, others = roped.decode({seq: new})[seq], raw.decode({same: new})[same]
        difference = float(np.maximum(difference, np.abs(logits - others).max()))
        held += new
        new = [int(logits[-1].argmax())]

    prefilled = Recomputation(decoder, FORMATS["float32"]).logits(held)[-1]
    print(
        f"  {shifts} shifts; largest logit difference from a cache of unrotated keys {difference:.2g}; "
        f"a new prefill of the last {len(held)} tokens would differ by {np.abs(logits[-1] - prefilled).max():.2g}"
    )
    if not difference <= BOUNDS["float32"] or not shifts:
        print("wrong: a logit is beyond its bound, or nothing was shifted")
        return 1
    return 0


def shift(engine: Engine, seq: int, new: int) -> int:
    """Makes room for new tokens in the context; how many positions were discarded."""
    discarded = engine.manager.context_shift(seq, CONTEXT, new, n_keep=N_KEEP)
    engine.manager.update(engine.memory)  # now, for looking at the bytes; else the next step does it
    return discarded


def turned_as_in_numpy(engine: Engine, seq: int, before: np.ndarray, kept: list[int]) -> bool:
    """Whether a sequence has the kept ones of the rows before a shift, each key turned to its new position.

    Rotary embeddings turn pair i of a key by position * f_i, so a key that was stored for one position serves another
    after a turn by delta * f_i. Cosine and sine are computed in float64, every product and sum is rounded to float32.
    """
    expected = before[kept]
    keys, deltas, half = expected[:, :, 0], np.arange(len(kept)) - kept, engine.decoder.head_dim // 2
    frequency = np.float64(engine.decoder.rope_base) ** (-np.arange(half) / half)
    angles = deltas.reshape(-1, 1, 1, 1) * frequency
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = keys[..., :half].copy(), keys[..., half:].copy()
    moved = deltas != 0
    keys[moved, ..., :half], keys[moved, ..., half:] = (a * cos - b * sin)[moved], (a * sin + b * cos)[moved]
    return rows_of(engine, seq).tobytes() == expected.tobytes()


def rows_of(engine: Engine, seq: int) -> np.ndarray:
    """All rows of a sequence, (rows, L, 2, H, Dh)."""
    return engine.cache.rows(engine.manager.slots(seq))[0]


if __name__ == "__main__":
    print("\na conversation that outgrows its context")
    sys.exit(main())
