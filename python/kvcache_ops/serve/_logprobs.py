"""Logprobs of an answer's tokens in OpenAI's two forms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from kvcache_ops.engine import TokenLogprobs

_LEAST = -9999.0  # JSON has no infinity
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class Logprobs:
    """Writes them for one model's tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The character of each byte: printable bytes stand for themselves, the others are numbered from 256 on.
        printed = [byte for byte in range(256) if chr(byte) in ByteLevel.alphabet()]
        others = [byte for byte in range(256) if byte not in printed]
        self._bytes = {chr(b): b for b in printed} | {chr(256 + i): b for i, b in enumerate(others)}
        self._byte_level = b"ByteLevel" in (tokenizer.decoder.__getstate__() if tokenizer.decoder else b"")

    def chat(self, tokens: Sequence[TokenLogprobs]) -> dict[str, object]:
        """Of a chat's choice: an object for each token."""

        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            name, data = self._named(token)
            return {"token": name, "logprob": max(logprob or 0.0, _LEAST), "bytes": list(data)}

        content = [entry(t.token, t.logprob) | {"top_logprobs": [entry(*top) for top in t.top]} for t in tokens]
        return {"content": content, "refusal": None}

    def completion(self, tokens: Sequence[TokenLogprobs]) -> dict[str, object]:
        """Of a completion's choice: lists, the drawn token among the likeliest; null of a prompt's first token."""

        def likely(of: TokenLogprobs) -> dict[str, float] | None:
            if of.logprob is None:
                return None
            return {self._named(t)[0]: max(logprob, _LEAST) for t, logprob in [*of.top, (of.token, of.logprob)]}

        return {
            "tokens": [self._named(t.token)[0] for t in tokens],
            "token_logprobs": [None if t.logprob is None else max(t.logprob, _LEAST) for t in tokens],
            "top_logprobs": [likely(t) for t in tokens],
            "text_offset": [t.offset for t in tokens],
        }

    def _named(self, token: int) -> tuple[str, bytes]:
        """A token's text, or, if it is a part of a character, its bytes as OpenAI writes them; and its bytes."""
        piece: str = self._tokenizer.id_to_token(token) or ""
        if self._byte_level and all(character in self._bytes for character in piece):
            data = bytes(self._bytes[character] for character in piece)
        elif found := _BYTE.fullmatch(piece):
            data = bytes.fromhex(found[1])
        else:
            data = (piece if self._byte_level else piece.replace("▁", " ")).encode()
        try:
            return data.decode(), data
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data
