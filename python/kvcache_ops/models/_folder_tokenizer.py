"""The tokenizer of a Hugging Face folder, the ends of answers, and the chat template.

What each of the folder's files says is used, or contradicted by a warning. As transformers has it, tokenizer.json comes
first; tokenizer_config.json and added_tokens.json add tokens, and say more about those that are there.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from kvcache_ops._errors import KvCacheError
from kvcache_ops.models._source_files import json_of, probably, text_of

_CONFIG, _ADDED, _SPECIAL = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# Classes whose tokenizers begin prompts as add_bos_token says, whatever tokenizer.json does.
_OBEY = re.compile(r"(Code)?(Llama|Gemma)Tokenizer(Fast)?")


def tokenizer_of(folder: Path, vocab_size: int = 2**32) -> Tokenizer:
    """The tokenizer of tokenizer.json with the tokens that other files add, without truncation and padding.

    Added tokens that the model lacks are left out, with a warning. Raises KvCacheError: "source_missing",
    "source_damaged", "config_type", and "tokenizer_mismatch" for a token that files give different numbers.
    """
    text = text_of(folder / "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the package raises no narrower one
        message = f"{folder / 'tokenizer.json'} is no tokenizer: {error}{probably(folder / 'tokenizer.json')}"
        raise KvCacheError(message, "source_damaged") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    own = {added.content for added in tokenizer.get_added_tokens_decoder().values()}
    said = {name: json_of(folder / name) if (folder / name).is_file() else {} for name in (_CONFIG, _ADDED, _SPECIAL)}
    named = _add(tokenizer, said, vocab_size)
    _begin(tokenizer, said[_CONFIG])
    beyond = {i: added.content for i, added in tokenizer.get_added_tokens_decoder().items() if i >= vocab_size}
    if not beyond:
        return tokenizer
    left_out: dict[str, list[str]] = {}
    for text in beyond.values():
        left_out.setdefault("tokenizer.json" if text in own else named[text], []).append(text)
    for file, texts in left_out.items():
        message = f"{', '.join(texts)} of {file} are left out: the model has {vocab_size} tokens"
        warnings.warn(message, stacklevel=2)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] not in beyond]
    return Tokenizer.from_str(json.dumps(data))


def _add(tokenizer: Tokenizer, said: dict[str, dict[str, Any]], vocab_size: int) -> dict[str, str]:
    """Adds the tokens that files beside tokenizer.json name; returns which file names which."""
    wanted: dict[str, tuple[str, int | None, AddedToken]] = {}
    special: dict[str, Any] = {}
    for file in (_CONFIG, _SPECIAL):
        for token in _special_tokens(said[file]):
            special.setdefault(_content(token, file), (file, token))
    decoder = said[_CONFIG].get("added_tokens_decoder") or {}
    for number, token in sorted(_entries(decoder, _CONFIG), key=lambda entry: entry[0]):
        text = _content(token, _CONFIG)
        wanted[text] = (_CONFIG, number, _token(token, _CONFIG, special=text in special))
    for text, number in said[_ADDED].items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise KvCacheError(f"{text} is {number!r} in {_ADDED}, expected a whole number", "config_type")
    for text, number in sorted(said[_ADDED].items(), key=lambda entry: entry[1]):
        found = AddedToken(text, special=text in special, normalized=text not in special)
        wanted.setdefault(text, (_ADDED, number, found))
    for text, (file, token) in special.items():
        wanted.setdefault(text, (file, None, _token(token, file, special=True)))
    for text, (file, asked, token) in wanted.items():
        is_new = tokenizer.token_to_id(text) is None
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        got = tokenizer.token_to_id(text)
        assert got is not None  # it was just added
        if asked is not None and got != asked and min(asked, got) < vocab_size:
            message = f"{text} is token {asked} in {file}, and {got} after those of tokenizer.json"
            raise KvCacheError(f"{message}: expected one number", "tokenizer_mismatch")
        if asked is None and is_new and got < vocab_size:
            message = f"{text} of {file} is no token of tokenizer.json, and becomes {got}, as transformers has it"
            warnings.warn(message, stacklevel=3)
    return {text: file for text, (file, _, _) in wanted.items()}


def _entries(decoder: Any, file: str) -> list[tuple[int, Any]]:
    """The numbers and tokens of an added_tokens_decoder."""
    if not isinstance(decoder, dict) or not all(str(number).isdecimal() for number in decoder):
        message = f"added_tokens_decoder is {decoder!r:.80} in {file}, expected tokens by their numbers"
        raise KvCacheError(message, "config_type")
    return [(int(number), token) for number, token in decoder.items()]


def _special_tokens(said: dict[str, Any]) -> list[Any]:
    """The tokens that have a role, and further special ones, each a text or an object."""
    found = [said.get(name) for name in _ROLES]
    for name in _LISTS:
        more = said.get(name) or []
        found += list(more.values()) if isinstance(more, dict) else more if isinstance(more, list) else [more]
    return [token for token in found if token]


def _content(token: Any, file: str) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str) or not content:
        raise KvCacheError(f"a token is {token!r:.80} in {file}, expected a text, or an object with one", "config_type")
    return content


def _token(token: Any, file: str, special: bool) -> AddedToken:
    """An added token with the flags that its entry has."""
    said = token if isinstance(token, dict) else {}
    flags = {name: bool(said[name]) for name in _FLAGS if said.get(name) is not None}
    flags["special"] = flags.get("special", False) or special
    return AddedToken(_content(token, file), **{"normalized": not flags["special"]} | flags)


def _begin(tokenizer: Tokenizer, said: dict[str, Any]) -> None:
    """Begins prompts with bos as tokenizer_config.json says, where transformers does so."""
    asked, bos = said.get("add_bos_token"), said.get("bos_token")
    text = _content(bos, _CONFIG) if bos else None
    if said.get("add_eos_token") is True:
        warnings.warn(f"{_CONFIG} says add_eos_token: prompts that are continued do not end with eos", stacklevel=3)
    if not isinstance(asked, bool) or text is None or (number := tokenizer.token_to_id(text)) is None:
        return
    if (tokenizer.encode("").ids[:1] == [number]) == asked:
        return
    if not _OBEY.fullmatch(str(said.get("tokenizer_class"))):
        does = "does not begin" if asked else "begins"
        message = f"{_CONFIG} says add_bos_token {json.dumps(asked)}, tokenizer.json {does} a prompt with {text}"
        warnings.warn(f"{message}, which counts", stacklevel=3)
        return
    pieces = {"single": f"{text}:0 $A:0", "pair": f"{text}:0 $A:0 {text}:1 $B:1"} if asked else {"single": "$A:0"}
    tokens = [(text, number)] if asked else []
    tokenizer.post_processor = processors.TemplateProcessing(**pieces, special_tokens=tokens)


def of_chats(
    folder: Path, eos: Any, tokenizer: Tokenizer | None = None, bos_id: Any = None
) -> tuple[str | None, tuple[int, ...], str | None]:
    """The text of the token that begins a conversation, the tokens that end an answer, and the chat template.

    eos, bos_id: what the model's configuration says of the tokens that end an answer, and of the one that begins a
    text. The tokenizer knows the end that tokenizer_config.json names, the first of them, which is the template's
    `eos_token`. Ends and beginnings that are no tokens are said in warnings.
    """
    said, generation, special = (
        json_of(path) if path.is_file() else {}
        for path in (folder / _CONFIG, folder / "generation_config.json", folder / _SPECIAL)
    )
    texts = {}
    for name in ("bos_token", "eos_token"):
        given = [of.get(name) for of in (said, special)]
        values = [value.get("content") if isinstance(value, dict) else value for value in given]
        texts[name] = values[0] if name in said else values[1]
        if None not in values and values[0] != values[1]:
            warnings.warn(
                f"{name} is {values[1]!r} in {_SPECIAL}, and {values[0]!r} in {_CONFIG}, which counts", stacklevel=3
            )
    bos, end, template = texts["bos_token"], texts["eos_token"], _template(folder, said)
    stops: list[Any] = [tokenizer.token_to_id(end) if tokenizer is not None and isinstance(end, str) else None]
    for ids in (generation.get("eos_token_id"), eos):
        stops += ids if isinstance(ids, list) else [ids]
    stops = [stop for stop in stops if stop is not None]
    facts = [("bos_token", bos, str), ("chat_template", template, str), *(("eos_token_id", s, int) for s in stops)]
    for name, value, kind in facts:
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            expected = "a text" if kind is str else "a whole number, or a list of them"
            raise KvCacheError(f"{name} is {value!r} in {folder}, expected {expected}", "config_type")
    if tokenizer is not None:
        for name, text in texts.items():
            if isinstance(text, str) and text and tokenizer.token_to_id(text) is None:
                warnings.warn(f"{name} is {text!r} in {folder}, which is no token of the tokenizer", stacklevel=3)
        for stop in dict.fromkeys(stops):
            if stop < 0 or tokenizer.id_to_token(stop) is None:
                warnings.warn(f"eos_token_id {stop} in {folder} is no token of the tokenizer", stacklevel=3)
        begins = tokenizer.token_to_id(bos) if bos else None
        if isinstance(bos_id, int) and begins not in (None, bos_id):
            message = f"bos_token_id is {bos_id} in {folder}, and bos_token is {bos!r}, token {begins}, which counts"
            warnings.warn(message, stacklevel=3)
        if not stops:
            warnings.warn(f"no file in {folder} says which token ends an answer: only limits do", stacklevel=3)
    return bos, tuple(dict.fromkeys(stops)), template


def _template(folder: Path, said: dict[str, Any]) -> Any:
    """The chat template: of chat_template.jinja, else of tokenizer_config.json, else of chat_template.json."""
    template = said.get("chat_template")
    if isinstance(template, list):  # several by name
        by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = by_name.get("default")
        if template is None and by_name:
            names = ", ".join(map(str, by_name))
            warnings.warn(
                f"{_CONFIG} has the chat templates {names}, and none called default: none is taken", stacklevel=4
            )
    if (folder / "chat_template.jinja").is_file():
        text = text_of(folder / "chat_template.jinja")
        if isinstance(template, str) and template.strip() != text.strip():
            warnings.warn(f"chat_template.jinja is another one than {_CONFIG} has: it counts", stacklevel=4)
        return text
    if template is None and (folder / "chat_template.json").is_file():
        return json_of(folder / "chat_template.json").get("chat_template")
    return template
