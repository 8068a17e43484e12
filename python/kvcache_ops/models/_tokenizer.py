"""Tokenizers from the tokens, merges and scores of a GGUF file, as the package tokenizers has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from kvcache_ops._errors import KvCacheError

_CONTROL, _USER_DEFINED, _UNKNOWN = 3, 4, 2

# Words and numbers as Llama 3 and Qwen 2 cut a text before merging; they differ in how many digits are one.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2(*first: Any) -> Any:
    return pre_tokenizers.Sequence([*first, pre_tokenizers.ByteLevel(add_prefix_space=False)])


# How a text is cut, by tokenizer.ggml.pre.
_PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "gpt-2": _gpt2,
    "smollm": lambda: _gpt2(pre_tokenizers.Digits(individual_digits=True)),
    "llama-bpe": lambda: _split(_WORDS.replace("DIGITS", "{1,3}")),
    "qwen2": lambda: _split(_WORDS.replace("DIGITS", "")),
}


def from_gguf(get: Callable[..., Any]) -> tuple[Tokenizer, str | None, tuple[int, ...]]:
    """The tokenizer of a file, the text of the token that begins a prompt, and the tokens that end an answer.

    get(key, type, default) reads metadata. Raises KvCacheError: "tokenizer_unknown" for another tokenizer.ggml.model or
    pre than the supported ones, "config_missing", and "tokenizer_damaged" for merges and tokens that do not agree.
    """
    kind, tokens = get("tokenizer.ggml.model", str, str), get("tokenizer.ggml.tokens", list, list)
    if len(set(tokens)) != len(tokens):
        raise KvCacheError("tokenizer.ggml.tokens has the same token twice", "tokenizer_damaged")
    types = get("tokenizer.ggml.token_type", list, [1] * len(tokens))
    if kind not in ("gpt2", "llama"):
        raise KvCacheError(f"tokenizer.ggml.model is {kind!r}, expected gpt2 or llama", "tokenizer_unknown")
    if len(types) != len(tokens):
        message = f"tokenizer.ggml.token_type has {len(types)} entries, expected {len(tokens)}, as tokens"
        raise KvCacheError(message, "tokenizer_damaged")
    try:
        tokenizer = _byte_level(get, tokens) if kind == "gpt2" else _sentence_piece(get, tokens, types)
    except KvCacheError:
        raise
    except Exception as error:  # the package raises no narrower one
        raise KvCacheError(f"the tokenizer's tokens do not agree: {error}", "tokenizer_damaged") from error
    special = [token for token, type_ in zip(tokens, types) if type_ == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    added = [token for token, type_ in zip(tokens, types) if type_ == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    keys = ("bos", "eos", "eot")
    ids = {key: get(f"tokenizer.ggml.{key}_token_id", int) for key in keys}
    for key, token in ids.items():
        if token is not None and not 0 <= token < len(tokens):
            message = f"tokenizer.ggml.{key}_token_id is {token}, expected one of {len(tokens)} tokens"
            raise KvCacheError(message, "tokenizer_mismatch")
    bos = None if ids["bos"] is None else tokens[ids["bos"]]
    if bos is not None and get("tokenizer.ggml.add_bos_token", bool, kind == "llama"):
        tokenizer.post_processor = processors.Sequence(
            [
                *([tokenizer.post_processor] if tokenizer.post_processor else []),
                processors.TemplateProcessing(f"{bos}:0 $A:0", special_tokens=[(bos, ids["bos"])]),
            ]
        )
    return tokenizer, bos, tuple(dict.fromkeys(ids[key] for key in ("eos", "eot") if ids[key] is not None))


def _byte_level(get: Callable[..., Any], tokens: list[str]) -> Tokenizer:
    """Byte pair encoding over bytes, by the file's merges."""
    pre = get("tokenizer.ggml.pre", str, str)
    if pre not in _PRE_TOKENIZERS:
        message = f"tokenizer.ggml.pre is {pre!r}, expected one of {', '.join(_PRE_TOKENIZERS)}"
        raise KvCacheError(message, "tokenizer_unknown")
    merges = [tuple(merge.split(" ", 1)) for merge in get("tokenizer.ggml.merges", list, list)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(get: Callable[..., Any], tokens: list[str], types: list[int]) -> Tokenizer:
    """Byte pair encoding over characters; the merge whose result has the best score comes first."""
    scores = get("tokenizer.ggml.scores", list, list)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = []
    for i, token in enumerate(tokens):
        cuts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        cuts = [(left, right) for left, right in cuts if left in vocabulary and right in vocabulary]
        merges += [(-scores[i], i, vocabulary[left], vocabulary[right]) for left, right in cuts]
    pairs = [(tokens[left], tokens[right]) for _, _, left, right in sorted(merges)]
    unknown = next((token for token, type_ in zip(tokens, types) if type_ == _UNKNOWN), None)
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = [normalizers.Prepend("▁")] if get("tokenizer.ggml.add_space_prefix", bool, True) else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer
