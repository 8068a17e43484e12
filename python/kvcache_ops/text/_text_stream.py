"""The text of an answer, token by token."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tokenizers import Tokenizer

_CONTEXT = 8  # tokens of the prompt that the first ones are decoded with
_MOST_CONTEXT = 64
_MOST_HELD = 16  # tokens without a whole character among them
_INCOMPLETE = "\ufffd"


class TextStream:
    """Decodes tokens that come one by one, after a prompt, whose text is left out.

    What a token adds depends on those before it: only a text's first word has no space, and a character may be several
    tokens. So each is decoded together with a few tokens before it, whose text is cut off. An incomplete character is
    held back; it becomes U+FFFD if nothing completes it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], hidden: Collection[int] | None = None) -> None:
        """hidden: tokens that have no text; None for all special ones."""
        self._tokenizer, self._hidden = tokenizer, hidden
        count = _CONTEXT
        self._tokens = list(prompt[-count:])
        while (self._text() or _INCOMPLETE).startswith(_INCOMPLETE) and count < min(len(prompt), _MOST_CONTEXT):
            count *= 2  # it began within a character, or with special tokens, which have no text
            self._tokens = list(prompt[-count:])
        # How many of the tokens have been given, and as what. A character that the prompt begins is given whole.
        begun = next((n for n in range(4) if not self._text(0, len(self._tokens) - n).endswith(_INCOMPLETE)), 0)
        self._said = len(self._tokens) - begun
        self._before, self._begun = self._text(0, self._said), self._text(self._said)

    def step(self, token: int) -> str:
        """The text that this token adds."""
        self._tokens.append(token)
        if self._text().endswith(_INCOMPLETE) and len(self._tokens) - self._said < _MOST_HELD:
            return ""
        added = self.rest()
        if added:
            self._tokens = self._tokens[self._said :]
            self._said, self._before, self._begun = len(self._tokens), self._text(), ""
        else:
            self._tokens.pop()  # a special one
        return added

    def rest(self) -> str:
        """The text that was held back."""
        text = self._text()
        # Invalid bytes may also turn the character before them into U+FFFD, but that one has been given.
        added = text[len(self._before) :] if text.startswith(self._before) else self._text(self._said)
        return added.removeprefix(self._begun)

    def _text(self, first: int = 0, end: int | None = None) -> str:
        tokens = self._tokens[first:end]
        if self._hidden is not None:
            tokens = [token for token in tokens if token not in self._hidden]
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=self._hidden is None)
        return text
