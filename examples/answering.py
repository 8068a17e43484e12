"""A real model answers five questions in one batch, with caches of three formats; `make run` shows this.

    python examples/answering.py SmolLM2-135M-Instruct.Q4_1.gguf

All questions begin with the same instruction, whose keys and values are computed once. The program also prints the
cache's size and the speed. It asks each format's first question again, alone in another engine: the exit status is 1 if
a token of its answer differs, since an answer does not depend on the rest of the batch.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from kvcache_ops.engine import Engine
from kvcache_ops.models import build

FORMATS = ("float16", "int8", "int4")
INSTRUCTION = (
    "You are a helpful assistant who knows geography, science, history and cooking. Answer each question in one or two "
    "short sentences. Say what you know to be true, in plain words, and say nothing that the question does not ask for."
)
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "How many legs does a spider have?",
    "What does a baker need to make bread?",
    "Who wrote Romeo and Juliet?",
)


def prompt(question: str) -> str:
    """As SmolLM2 was taught to read it."""
    return (
        f"<|im_start|>system\n{INSTRUCTION}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )


def answer(source: Path, folder: Path, cache: str, new_tokens: int) -> bool:
    """Builds the model with this cache, prints its answers; whether the first is the same alone."""
    build(source, folder, cache=cache)
    engine = Engine(folder, max_tokens=2048)
    begin = time.perf_counter()
    requests = engine.generate([prompt(question) for question in QUESTIONS], max_new_tokens=new_tokens)
    seconds = time.perf_counter() - begin
    written = sum(len(request.answer) for request in requests)
    print(
        f"\n{cache}: {engine.cache.spec.bytes_per_token} bytes for a token's keys and values; {written} tokens "
        f"written, {written / seconds:.0f} a second, after prompts of {sum(len(r.prompt) for r in requests)} tokens, "
        f"{sum(r.cached for r in requests)} of them found in the cache"
    )
    for question, request in zip(QUESTIONS, requests):
        text = f"{question}  {' '.join(request.text.split())}"
        print(textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="      "), flush=True)
    alone = Engine(folder, max_tokens=2048).generate([prompt(QUESTIONS[0])], max_new_tokens=new_tokens)[0]
    if alone.answer != requests[0].answer:
        print(f"wrong: alone, the first answer is {alone.text!r}")
    return alone.answer == requests[0].answer


def main() -> int:
    """Answers in every format; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="SmolLM2-135M-Instruct as a GGUF file, or another model of its kind")
    parser.add_argument("--new-tokens", type=int, default=48, help="how many tokens an answer has at most")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        right = [answer(arguments.source, Path(folder) / cache, cache, arguments.new_tokens) for cache in FORMATS]
    if all(right):
        print("\nin each format the first answer is the same alone and in the batch, token by token")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
