"""The JSON of answers, in OpenAI's form."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import uuid4


class Reply:
    """The objects of one answer to one call: whole, or in the chunks of a stream."""

    def __init__(self, chat: bool, model: str) -> None:
        self._chat = chat
        kind, prefix = ("chat.completion", "chatcmpl") if chat else ("text_completion", "cmpl")
        self._head = {"id": f"{prefix}-{uuid4().hex}", "created": int(time.time()), "model": model}
        self._whole, self._chunk = kind, f"{kind}.chunk" if chat else kind

    def whole(self, texts: list[str], finishes: list[str], usage: dict[str, object]) -> dict[str, object]:
        """All choices at once."""
        choices: list[dict[str, object]] = []
        for text, finish in zip(texts, finishes):
            message = {"role": "assistant", "content": text, "refusal": None}
            choices.append(self._choice(len(choices), {"message": message} if self._chat else {"text": text}, finish))
        return {"object": self._whole, **self._head, "choices": choices, "usage": usage}

    def role(self) -> bytes:
        """The chunk that begins a chat's answer."""
        return self._event([self._choice(0, {"delta": {"role": "assistant", "content": ""}}, None)])

    def piece(self, index: int, text: str, finish: str | None) -> bytes:
        """A chunk with the next piece of a choice."""
        content = {"delta": {"content": text} if text else {}} if self._chat else {"text": text}
        return self._event([self._choice(index, content, finish)])

    def usage(self, usage: dict[str, object]) -> bytes:
        """The last chunk, where it was asked for."""
        return self._event([], usage=usage)

    def _choice(self, index: int, content: dict[str, Any], finish: str | None) -> dict[str, object]:
        return {"index": index, **content, "logprobs": None, "finish_reason": finish}

    def _event(self, choices: list[dict[str, object]], **more: object) -> bytes:
        return event({"object": self._chunk, **self._head, "choices": choices, **more})


DONE = b"data: [DONE]\n\n"


def event(content: dict[str, object]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()
