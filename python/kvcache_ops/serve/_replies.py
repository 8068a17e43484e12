"""The JSON of answers, in OpenAI's form."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from kvcache_ops.engine import TokenLogprobs
from kvcache_ops.serve._dispatcher import Piece
from kvcache_ops.serve._logprobs import Logprobs
from kvcache_ops.serve._tools import CallReader, ToolCall


class Reply:
    """The objects of one answer to one call: whole, or in the chunks of a stream."""

    def __init__(
        self, chat: bool, model: str, logprobs: Logprobs | None, reader: Callable[[], CallReader] | None = None
    ) -> None:
        """`logprobs`: what writes them, where they were asked for. `reader`: makes what reads a choice's calls."""
        self._readers = None if reader is None else defaultdict[int, CallReader](reader)
        self._chat, self._logprobs = chat, logprobs
        kind, prefix = ("chat.completion", "chatcmpl") if chat else ("text_completion", "cmpl")
        self._head = {"id": f"{prefix}-{uuid4().hex}", "created": int(time.time()), "model": model}
        self._whole, self._chunk = kind, f"{kind}.chunk" if chat else kind

    def whole(self, pieces: list[list[Piece]], usage: dict[str, object]) -> dict[str, object]:
        """All choices at once, each of all of its pieces."""
        choices: list[dict[str, object]] = []
        for i, of_choice in enumerate(pieces):
            text, finish = "".join(piece.text for piece in of_choice), of_choice[-1].finish
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if self._readers is not None:
                said = self._readers[i].read(text, last=True)
                message["content"] = "".join(part for part in said if isinstance(part, str))
                if calls := [_call(part, part.arguments) for part in said if isinstance(part, ToolCall)]:
                    message |= {"content": message["content"] or None, "tool_calls": calls}
                finish = self._finish(i, finish)
            tokens = [token for piece in of_choice for token in piece.logprobs]
            content = {"message": message} if self._chat else {"text": text}
            choices.append(self._choice(i, content, finish, tokens))
        return {"object": self._whole, **self._head, "choices": choices, "usage": usage}

    def role(self, index: int) -> bytes:
        """The chunk that begins a choice of a chat."""
        return self._event([self._choice(index, {"delta": {"role": "assistant", "content": ""}}, None, [])])

    def piece(self, piece: Piece) -> bytes:
        """A chunk with the next piece of a choice; with tools several chunks, or none."""
        if self._readers is not None:
            return self._with_calls(piece, self._readers[piece.index].read(piece.text, piece.finish is not None))
        content = {"delta": {"content": piece.text} if piece.text else {}} if self._chat else {"text": piece.text}
        return self._event([self._choice(piece.index, content, piece.finish, piece.logprobs)])

    def _with_calls(self, piece: Piece, said: list[str | ToolCall]) -> bytes:
        deltas: list[dict[str, Any]] = []
        for part in said:
            if isinstance(part, str):
                deltas.append({"content": part})
            else:
                rest = {"index": part.index, "function": {"arguments": part.arguments}}
                deltas += [{"tool_calls": [{"index": part.index, **_call(part, "")}]}, {"tool_calls": [rest]}]
        if piece.finish is not None or (piece.logprobs and not deltas):
            deltas.append({})
        chunks = []
        for i, delta in enumerate(deltas):
            finish = self._finish(piece.index, piece.finish) if i == len(deltas) - 1 else None
            chunks.append(self._choice(piece.index, {"delta": delta}, finish, [] if i else piece.logprobs))
        return b"".join(self._event([chunk]) for chunk in chunks)

    def _finish(self, index: int, finish: str | None) -> str | None:
        """Why a choice has ended, whose reader knows whether it has called a tool."""
        called = self._readers is not None and self._readers[index].count
        return "tool_calls" if called and finish == "stop" else finish

    def usage(self, usage: dict[str, object]) -> bytes:
        """The last chunk, where it was asked for."""
        return self._event([], usage=usage)

    def _choice(
        self, index: int, content: dict[str, Any], finish: str | None, tokens: list[TokenLogprobs]
    ) -> dict[str, object]:
        written = None
        if self._logprobs is not None:
            written = self._logprobs.chat(tokens) if self._chat else self._logprobs.completion(tokens)
        return {"index": index, **content, "logprobs": written, "finish_reason": finish}

    def _event(self, choices: list[dict[str, object]], **more: object) -> bytes:
        return event({"object": self._chunk, **self._head, "choices": choices, **more})


def _call(call: ToolCall, arguments: str) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


DONE = b"data: [DONE]\n\n"
COMMENT = b":\n\n"  # which clients leave out

# Line breaks of Unicode, at which clients that read lines would cut an event. JSON escapes all others.
_BREAKS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


def event(content: dict[str, object]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False).translate(_BREAKS)}\n\n".encode()
