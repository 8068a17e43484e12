"""Examples with the real model, which end with status 1 if an answer is wrong: tiers of every kind, and a long text."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from socket import create_connection, socket

import onnxruntime
import pytest
from kvcache_ops import models
from kvcache_ops.engine import Engine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SERVERS = {"s3": "KVCACHE_MOTO_SERVER", "redis": "KVCACHE_REDIS_SERVER"}


def run(name: str, *arguments: str, **variables: str) -> str:
    """What an example prints."""
    command = [sys.executable, str(EXAMPLES / name), os.environ["KVCACHE_SMOLLM2"], *arguments]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def server(kind: str) -> Iterator[int]:
    """A server that keeps nothing on disk, and its port."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [os.environ[SERVERS[kind]], *(["--save", "", "--port"] if kind == "redis" else ["-p"]), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


def test_files_between_processes() -> None:
    """The temporary folder that the example makes itself."""
    assert "another process" in run("tiers.py")


@pytest.mark.parametrize("kind", SERVERS)
def test_servers_between_processes(kind: str) -> None:
    """The second process finds most of what the first one has computed."""
    with server(kind) as port:
        if kind == "s3":
            connection = HTTPConnection("127.0.0.1", port)
            connection.request("PUT", "/blocks")
            assert connection.getresponse().status == 200
        address = f"redis://127.0.0.1:{port}/0" if kind == "redis" else "s3://blocks/prefixes"
        secrets = dict(AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="secret", AWS_REGION="us-east-1")
        endpoint = dict(AWS_ENDPOINT=f"http://127.0.0.1:{port}", AWS_ALLOW_HTTP="true")
        printed = run("tiers.py", "--tier", address, **secrets, **endpoint)
    line = next(line for line in printed.splitlines() if line.startswith("another process"))
    found, tokens = [int(word) for word in line.split() if word.isdigit()][:2]
    assert found > 0.9 * tokens, printed


def test_a_context_of_16_times_the_cache() -> None:
    """The pass key is in blocks that were not in the cache when it was asked for."""
    assert "the answer 71432" in run("long_context.py")


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
