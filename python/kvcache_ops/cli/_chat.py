"""`python -m kvcache_ops chat`: a conversation in the terminal."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvcache_ops._atomic_file import written
from kvcache_ops._errors import KvCacheError
from kvcache_ops.engine import Engine, Request
from kvcache_ops.models import ChatTemplate

_HELP = "/save FILE  /load FILE  /reset  /quit; Ctrl-C ends an answer"


class Chat:
    """Reads messages from standard input, and prints answers as they come, and a line about each on standard error."""

    def __init__(self, engine: Engine, system: str | None, **sampling: Any) -> None:
        self._engine, self._template = engine, ChatTemplate(engine.model)
        self._beginning = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._beginning)
        self._sampling = {"max_new_tokens": engine.context_length} | sampling

    def run(self) -> int:
        """The conversation, until /quit or the end of the input; returns 0."""
        try:
            import readline  # which edits input()'s line

            readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one message
        except ImportError:
            pass
        _say(f"{self._engine.model.name}: {_HELP}")
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                _say(f"\n{_HELP}")
                continue
            except UnicodeDecodeError as error:
                _say(f"prompt_type: {error}")
                continue
            try:
                if line == "/quit":
                    return 0
                if line.startswith("/") and "\n" not in line:
                    self._command(*line.partition(" ")[::2])
                elif line:
                    self._answer(line)
            except KvCacheError as error:
                _say(f"{error.kind}: {error}")
            except OSError as error:
                _say(str(error))
            except KeyboardInterrupt:  # before an answer has begun, or in the middle of a file
                _say("interrupted")

    def _command(self, name: str, argument: str) -> None:
        if name == "/reset":
            self._messages = list(self._beginning)
        elif name in ("/save", "/load") and argument:
            (self._save if name == "/save" else self._load)(Path(argument.strip()))
        else:
            _say(_HELP)

    def _answer(self, line: str) -> None:
        """Prints an answer. An interrupted one stays as far as it came; a failed one is removed with its question."""
        begin = first = time.perf_counter()
        messages, tokens = self._in_context([*self._messages, {"role": "user", "content": line}])
        keep = min(self._template.beginning(messages), self._engine.context_length // 2)
        request = self._engine.submit(tokens, keep=keep, **self._sampling)
        pieces: list[str] = []  # what is said; of one that is interrupted, the text may have more
        with suppress(KeyboardInterrupt, KvCacheError):  # it has ended, and has its error
            for piece in request:
                first = first if pieces else time.perf_counter()
                pieces.append(piece)
                print(piece, end="", flush=True)
        print()
        if request.error is not None:
            raise request.error
        if len(messages) <= len(self._messages):
            forgotten = len(self._messages) + 1 - len(messages)
            _say(f"the context has {self._engine.context_length} tokens: the oldest {forgotten} messages are forgotten")
        self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]
        _say(f"[{self._status(request, first - begin, time.perf_counter() - first)}]")

    def _in_context(self, messages: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[int]]:
        """Messages and their tokens; past 3/4 of the context without the oldest messages, down to a half."""
        context = self._engine.context_length
        return self._template.shortened(messages, 3 * context // 4, context // 2)

    def _status(self, request: Request, waited: float, seconds: float) -> str:
        count, stats = len(request.answer), self._engine.manager.stats()
        held = stats["used"] + stats["cached"]
        parts = [
            f"{count} tokens, {request.finish}",
            f"{request.shifted} tokens after the beginning left the context" if request.shifted else "",
            f"{(count - 1) / seconds:.1f} tokens/s" if count > 1 else "",
            f"first token after {waited:.2f} s, {request.cached} of {len(request.prompt)} prompt tokens from the cache",
            f"cache {held} of {stats['slots']} slots, {self._engine.caches.held_bytes / 1e6:.1f} MB",
        ]
        return "; ".join(filter(None, parts))

    def _save(self, path: Path) -> None:
        """The messages as JSON, and their keys and values in a file beside it."""
        if len(self._messages) == len(self._beginning):
            raise KvCacheError("there is no conversation yet, expected a question and its answer", "chat_empty")
        tokens = self._template.tokens(self._messages, False)
        try:
            self._engine.save(_session(path), tokens[: self._engine.context_length])
            rows = f"their keys and values in {_session(path)}"
        except KvCacheError as error:
            if error.kind != "layer_groups":
                raise
            rows = "whose keys and values will be computed again"
        about = {"model": self._engine.model.name, "messages": self._messages}
        with written(path) as file:
            file.write((json.dumps(about, ensure_ascii=False, indent=1) + "\n").encode())
        _say(f"{len(self._messages)} messages are in {path}, {rows}")

    def _load(self, path: Path) -> None:
        try:
            given = json.loads(path.read_text(encoding="utf-8"))["messages"]
            messages = [{"role": message["role"], "content": message["content"]} for message in given]
            self._template.tokens(messages)
        except (ValueError, LookupError, TypeError) as error:
            raise KvCacheError(f"{path} has no conversation: {error}", "chat_damaged") from error
        if _session(path).exists():
            try:
                self._engine.load(_session(path))
            except KvCacheError as error:  # of another model or format of cache, or damaged
                _say(f"{_session(path)} is not used, the text is computed again: {error}")
        self._messages = messages
        _say(f"{len(messages)} messages of {path}")


def _session(path: Path) -> Path:
    return path.with_name(f"{path.name}.kv")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
