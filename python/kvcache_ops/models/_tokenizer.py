"""Tokenizers from the tokens, merges and scores of a GGUF file, as the package tokenizers has them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from kvcache_ops._errors import KvCacheError

_CONTROL, _USER_DEFINED, _UNKNOWN = 3, 4, 2

_NO_TOKEN = 2**32 - 1  # -1, as some files have it
_SPECIAL = {"bos": 1, "eos": 2}  # of SentencePiece, where a file does not say it, as llama.cpp has it
# What ends an answer by its name, if it is a control token, as llama.cpp has it.
_ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "</s>",
    "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
    "<\uff5cend▁of▁sentence\uff5c>",
}  # fmt: skip

# Words and numbers as Llama 3 and Qwen 2 cut a text before merging; they differ in how many digits are one.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_3 = _WORDS.replace("DIGITS", "{1,3}")
_QWEN_2 = _WORDS.replace("DIGITS", "")
_QWEN_35 = _QWEN_2.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r"\s\p{L}\p{N}", r"\s\p{L}\p{M}\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"

# How a text is cut, one pattern after the other, by tokenizer.ggml.pre, as llama.cpp has it.
_PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "phi-2", "gigachat", "exaone4"), (_GPT_2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "minerva-7b"), (r"\p{N}", _GPT_2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "smaug-bpe"), (_LLAMA_3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "stablelm2"), (_QWEN_2,)),
    "qwen35": (_QWEN_35,),
    "tekken": (_TEKKEN,),
}
# By these a word that is a token is not merged, and a prompt begins with bos unless the file says otherwise.
_WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "tekken"}


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
    ids = {name: _special(get, name, len(tokens)) for name in ("bos", "eos", "eot", "eom")}
    bos = None if ids["bos"] is None else tokens[ids["bos"]]
    adds = kind == "llama" or get("tokenizer.ggml.pre", str) in _WHOLE_WORDS
    if bos is not None and get("tokenizer.ggml.add_bos_token", bool, adds):
        tokenizer.post_processor = processors.Sequence(
            [
                *([tokenizer.post_processor] if tokenizer.post_processor else []),
                processors.TemplateProcessing(f"{bos}:0 $A:0", special_tokens=[(bos, ids["bos"])]),
            ]
        )
    stops = [ids[name] for name in ("eos", "eot", "eom")]
    stops += [i for i, (token, type_) in enumerate(zip(tokens, types)) if type_ == _CONTROL and token in _ENDS]
    return tokenizer, bos, tuple(dict.fromkeys(stop for stop in stops if stop is not None))


def _special(get: Callable[..., Any], name: str, count: int) -> int | None:
    """A token that has a meaning, one of `count`."""
    key = f"tokenizer.ggml.{name}_token_id"
    kind, default = get("tokenizer.ggml.model", str), _SPECIAL.get(name, count)
    token: int | None = get(key, int, default if kind == "llama" and default < count else None)
    if token == _NO_TOKEN:
        warnings.warn(f"{key} is {token}, which is taken for none", stacklevel=2)
        return None
    if token is not None and not 0 <= token < count:
        raise KvCacheError(f"{key} is {token}, expected one of {count} tokens", "tokenizer_mismatch")
    return token


def _byte_level(get: Callable[..., Any], tokens: list[str]) -> Tokenizer:
    """Byte pair encoding over bytes, by the file's merges."""
    pre = get("tokenizer.ggml.pre", str)
    if pre is None:
        warnings.warn("there is no tokenizer.ggml.pre: texts may be cut otherwise than in training", stacklevel=2)
        pre = "default"
    if pre not in _PRE_TOKENIZERS:
        message = f"tokenizer.ggml.pre is {pre!r}, expected one of {', '.join(_PRE_TOKENIZERS)}"
        raise KvCacheError(message, "tokenizer_unknown")
    merges = [tuple(merge.split(" ", 1)) for merge in get("tokenizer.ggml.merges", list, list)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in _WHOLE_WORDS))
    if _PRE_TOKENIZERS[pre] in ((_QWEN_2,), (_QWEN_35,)):
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PRE_TOKENIZERS[pre]]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_])
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
