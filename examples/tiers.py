"""More conversations than the cache has slots for: a real model finds their keys and values in tiers.

    python examples/tiers.py SmolLM2-135M-Instruct.Q4_1.gguf
    python examples/tiers.py SmolLM2-135M-Instruct.Q4_1.gguf --tier redis://localhost:6379/0
    python examples/tiers.py SmolLM2-135M-Instruct.Q4_1.gguf --tier s3://bucket/prefix    # AWS_... say the rest

Some conversations about long texts take turns in a cache that holds two of them. Pages that are evicted go to host
memory and to the tier: files of a folder unless another one is named. Each conversation's second question finds its
text there. Then another process, whose cache and host memory are empty, asks each a third question. The exit status is
1 if a token of an answer differs from the answer where everything is computed: found keys and values have the bits of
computed ones.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from kvcache_ops.engine import Engine, Request
from kvcache_ops.manager import HostTier, tier
from kvcache_ops.models import build, load

CONVERSATIONS = 6
TOKENS = 1200  # of the text that a conversation is about
SLOTS = 3072
QUESTIONS = ("What is this text about?", "Which word is used most often?", "Name one thing from the text.")


def texts(engine: Engine) -> list[list[int]]:
    """The beginnings of conversations: pieces of this library's own pages."""
    pages = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    tokens = engine.model.encode("\n".join(page.read_text() for page in pages))
    return [tokens[i * TOKENS : (i + 1) * TOKENS] for i in range(CONVERSATIONS)]


def ask(engine: Engine, text: list[int], question: str) -> tuple[Request, float]:
    """A short answer, and the seconds until its first text."""
    request = engine.submit([*text, *engine.encode(f"\n\nQuestion: {question}\nAnswer:")], max_new_tokens=12)
    begin = time.perf_counter()
    pieces = iter(request)
    next(pieces, None)
    seconds = time.perf_counter() - begin
    for _ in pieces:
        pass
    return request, seconds


def turn(engine: Engine, question: str, label: str) -> list[list[int]]:
    """One question of each conversation; the answers' tokens."""
    asked = [ask(engine, text, question) for text in texts(engine)]
    seconds = sorted(seconds for _, seconds in asked)[len(asked) // 2]
    found, tokens = sum(r.cached for r, _ in asked), sum(len(r.prompt) for r, _ in asked)
    print(
        f"{label}: {found} of {tokens} tokens found, the first token after {seconds * 1e3:.0f} ms (median)", flush=True
    )
    return [request.answer for request, _ in asked]


def with_tiers(model: Path, address: str) -> Engine:
    """An engine whose cache holds two conversations, and its host memory two more."""
    host = HostTier(2 * TOKENS * load(model).cache_spec(SLOTS).bytes_per_token)
    return Engine(model, max_tokens=SLOTS, tiers=[host, tier(address)])


def main() -> int:
    """Asks, and asks again; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="a GGUF file, or a model that was built")
    parser.add_argument(
        "--tier", help="redis://..., s3://..., gs://..., az://..., file:FOLDER,SIZE; a temporary folder by default"
    )
    parser.add_argument("--second", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.second:
        answers = turn(with_tiers(arguments.source, arguments.tier), QUESTIONS[2], "another process ")
        return 0 if answers == turn(Engine(arguments.source, max_tokens=SLOTS), QUESTIONS[2], "computed        ") else 1
    with TemporaryDirectory() as folder:
        model, address = Path(folder) / "model", arguments.tier or f"file:{folder}/tier,4G"
        build(arguments.source, model)
        engine = with_tiers(model, address)
        turn(engine, QUESTIONS[0], "first question  ")
        answers = turn(engine, QUESTIONS[1], "second question ")
        right = answers == turn(Engine(model, max_tokens=SLOTS), QUESTIONS[1], "computed        ")
        engine.close(60)
        for used in engine.manager.tiers():
            print(f"{used['name']}: {used['hits']} blocks found, {used['puts']} written, {used['evicted']} evicted")
        second = subprocess.run([sys.executable, __file__, str(model), "--tier", address, "--second"])
    print("answers are the same as without tiers" if right else "wrong: answers differ")
    return second.returncode if right else 1


if __name__ == "__main__":
    sys.exit(main())
