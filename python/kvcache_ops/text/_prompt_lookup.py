"""Guesses of an answer's next tokens, for steps that check several at once."""

from __future__ import annotations

_LONGEST, _SHORTEST = 3, 2  # tokens that a guess is looked up by


class PromptLookup:
    """Guesses that the last tokens continue as at an earlier place, in the prompt or in the answer."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # the place after the latest of these tokens
        self._known = 0

    def guess(self, context: list[int], most: int) -> list[int]:
        """Guesses at most this many tokens. Each context is the one of the last guess and further tokens."""
        for end in range(max(self._known, _SHORTEST), len(context)):
            for length in range(_SHORTEST, min(_LONGEST, end) + 1):
                self._after[tuple(context[end - length : end])] = end
        self._known = len(context)
        for length in range(min(_LONGEST, len(context)), _SHORTEST - 1, -1):
            if (place := self._after.get(tuple(context[-length:]))) is not None:
                return context[place : place + most]
        return []
