"""The text of an answer, token by token, equals the text of all its tokens; what is no text harms nothing else."""

from __future__ import annotations

import pytest
from kvcache_ops.text._text_stream import TextStream
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEXT = "It is 20\u00a0\u20ac, \u201cna\u00efve\u201d \U0001f600\U0001f468\u200d\U0001f469 \u4f60\u597d end"


def byte_level() -> Tokenizer:
    """A token for each byte."""
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_piece() -> Tokenizer:
    """Words, and a token for each byte."""
    words = ["<s>", "\u2581Paris", "\u2581is", "x", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    replace, strip = decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def streamed(tokenizer: Tokenizer, prompt: list[int], answer: list[int]) -> list[str]:
    """What each token adds, and what is held back at the end."""
    stream = TextStream(tokenizer, prompt)
    return [*(stream.step(token) for token in answer), stream.rest()]


@pytest.mark.parametrize("cut", [0, 9, 12, 20])
def test_bytes(cut: int) -> None:
    """The text is right even if the prompt ends within a character that the answer completes."""
    tokenizer = byte_level()
    tokens = tokenizer.encode(TEXT).ids
    pieces = streamed(tokenizer, tokens[:cut], tokens[cut:])
    known = tokenizer.decode(tokens[:cut]).rstrip("\ufffd")
    assert known + "".join(pieces) == TEXT and not any("\ufffd" in piece for piece in pieces)
    assert "".join(streamed(tokenizer, [], tokens[:10])).endswith("\u00a0")
    assert "".join(streamed(tokenizer, [], tokens[:9])).endswith("\ufffd")


def test_byte_fallback() -> None:
    """Spaces as in the text of prompt and answer together; bytes that are no text are U+FFFD, however many."""
    tokenizer = sentence_piece()
    words = {tokenizer.id_to_token(i): i for i in range(tokenizer.get_vocab_size())}
    start, paris, is_, x = (words[word] for word in ("<s>", "\u2581Paris", "\u2581is", "x"))
    smile = [words[f"<0x{byte:02X}>"] for byte in "\U0001f600".encode()]
    a, bad, euro = words["<0x41>"], words["<0xFF>"], [words[f"<0x{byte:02X}>"] for byte in "\u20ac".encode()]
    for prompt, answer, text in (
        ([start, is_], [paris], " Paris"),
        ([start], [paris, is_], "Paris is"),
        ([], [a, bad, paris], "A\ufffd Paris"),
        ([is_], [x, *euro, x], "x\u20acx"),
        ([is_, *euro[:1]], [*euro[1:], x], "\u20acx"),
        ([is_, *euro[:1]], [x], "x"),
        ([is_], [bad] * 100 + [paris], "\ufffd" * 100 + " Paris"),
        ([is_], [start] * 40 + [paris], " Paris"),
        ([is_, *[start] * 40], [paris], " Paris"),
        ([is_], [*smile, bad, x], "\U0001f600\ufffdx"),
        ([is_, *smile * 5], [*smile, x], "\U0001f600x"),
        ([is_, *smile * 5, smile[0]], [*smile[1:], x], "\U0001f600x"),
        ([], [start] * 20 + [*smile, x], "\U0001f600x"),
    ):
        assert "".join(streamed(tokenizer, prompt, answer)) == text, (prompt, answer)
