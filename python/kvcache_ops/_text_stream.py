"""The text of an answer, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

_CONTEXT = 8  # tokens of the prompt that the first ones are decoded with
_MOST_HELD = 16  # tokens without a whole character among them
_INCOMPLETE = "\ufffd"


class TextStream:
    """Decodes tokens that come one by one, after those of a prompt, whose text is not given.

    What a token adds depends on those before it: only a text's first word has no space, and a character may be several
    tokens. So each is decoded together with a few tokens before it, whose text is cut off. An incomplete character is
    held back; it becomes U+FFFD if nothing completes it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-_CONTEXT:])
        self._said, self._before = len(self._tokens), self._text()  # of the tokens: how many have been given, as what

    def step(self, token: int) -> str:
        """What this token adds."""
        self._tokens.append(token)
        if self._text().endswith(_INCOMPLETE) and len(self._tokens) - self._said < _MOST_HELD:
            return ""
        added = self.rest()
        if added:
            self._tokens = self._tokens[self._said :]
            self._said, self._before = len(self._tokens), self._text()
        return added

    def rest(self) -> str:
        """What has been held back."""
        text, before = self._text(), self._before
        if not text.startswith(before):  # the last character has become another one
            before = before.rstrip(_INCOMPLETE)
        return text[len(before) :]

    def _text(self) -> str:
        text: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        return text
