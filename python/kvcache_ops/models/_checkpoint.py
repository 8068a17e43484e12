"""A checkpoint: configuration, tensors, tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Tokenizer

from kvcache_ops._errors import KvCacheError
from kvcache_ops.models._config import Config
from kvcache_ops.models._weights import Weight


@dataclass(frozen=True)
class Checkpoint:
    """`tensor(name)` reads the tensor of that name in `config.tensors()`.

    `stops`: the tokens that end an answer. `bos`: the text of the token that begins a conversation, for the
    `chat_template`, one of Jinja's; where every prompt begins with it, the tokenizer adds it.
    """

    config: Config
    tensor: Callable[[str], Weight]
    tokenizer: Tokenizer
    bos: str | None
    stops: tuple[int, ...]
    chat_template: str | None
    name: str

    def __post_init__(self) -> None:
        check_tokenizer(self.tokenizer, self.stops, self.config.vocab_size)


def check_tokenizer(tokenizer: Tokenizer, stops: tuple[int, ...], vocab_size: int) -> None:
    """Refuses a tokenizer with more tokens than the model."""
    ids = [*tokenizer.get_vocab().values(), *stops]
    largest = max(ids, default=0)
    if min(ids, default=0) < 0:
        raise KvCacheError(f"the tokenizer has the token {min(ids)}, expected 0 or more", "tokenizer_mismatch")
    if largest >= vocab_size:
        message = f"the tokenizer has the token {largest}, expected less than vocab_size {vocab_size}"
        raise KvCacheError(message, "tokenizer_mismatch")
