"""The JSON of answers, in OpenAI's form."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import uuid4

from kvcache_ops.engine import TokenLogprobs
from kvcache_ops.serve._engine_thread import Piece
from kvcache_ops.serve._logprobs import Logprobs


class Reply:
    """The objects of one answer to one call: whole, or in the chunks of a stream."""

    def __init__(self, chat: bool, model: str, logprobs: Logprobs | None) -> None:
        """`logprobs`: what writes them, where they were asked for."""
        self._chat, self._logprobs = chat, logprobs
        kind, prefix = ("chat.completion", "chatcmpl") if chat else ("text_completion", "cmpl")
        self._head = {"id": f"{prefix}-{uuid4().hex}", "created": int(time.time()), "model": model}
        self._whole, self._chunk = kind, f"{kind}.chunk" if chat else kind

    def whole(self, pieces: list[list[Piece]], usage: dict[str, object]) -> dict[str, object]:
        """All choices at once, each of all of its pieces."""
        choices: list[dict[str, object]] = []
        for i, of_choice in enumerate(pieces):
            text = "".join(piece.text for piece in of_choice)
            message = {"role": "assistant", "content": text, "refusal": None}
            tokens = [token for piece in of_choice for token in piece.logprobs]
            content = {"message": message} if self._chat else {"text": text}
            choices.append(self._choice(i, content, of_choice[-1].finish, tokens))
        return {"object": self._whole, **self._head, "choices": choices, "usage": usage}

    def role(self, index: int) -> bytes:
        """The chunk that begins a choice of a chat."""
        return self._event([self._choice(index, {"delta": {"role": "assistant", "content": ""}}, None, [])])

    def piece(self, piece: Piece) -> bytes:
        """A chunk with the next piece of a choice."""
        content = {"delta": {"content": piece.text} if piece.text else {}} if self._chat else {"text": piece.text}
        return self._event([self._choice(piece.index, content, piece.finish, piece.logprobs)])

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


DONE = b"data: [DONE]\n\n"


def event(content: dict[str, object]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()
