"""The commands that run a model: `build`, `chat`, `generate`, `perplexity` and `serve`."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcache_ops._errors import KvCacheError
from kvcache_ops._interrupt import terminable
from kvcache_ops._optional import load as load_package

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from kvcache_ops.engine import Engine
    from kvcache_ops.models import Model


def add_parsers(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Adds the commands; each sets `run`, which takes what was given."""
    build = commands.add_parser("build", help="an ONNX model with a KV cache from a checkpoint or an ONNX export")
    build.add_argument("source", metavar="SOURCE", help="a GGUF file, a Hugging Face folder, or an ONNX export")
    build.add_argument("out", metavar="OUT", help="the folder to write")
    activations = "int8 or int16: the inputs of quantized matrices (auto: int16 for codes of 8 bits, int8 for 4)"
    build.add_argument("--activations", help=activations)
    build.add_argument("--products", help="panels, or MatMulNBits for a session of your own on CUDA (panels)")
    _add_formats(build)
    balance = "balance norms of queries and keys, so that quantized keys lose less (on for int4, where there are such)"
    build.add_argument("--balance", action=BooleanOptionalAction, help=balance)
    center = "subtract the mean key before keys are quantized (on for int4)"
    build.add_argument("--center", action=BooleanOptionalAction, help=center)
    build.add_argument("--cache-layout", type=int, help="0 to 3 (3)")
    build.add_argument("--cache-mode", type=int, help="0: neighboring slots for a sequence, 1: pages (1)")
    build.add_argument("--page-size", type=int, help="slots of a page (32)")
    groups = "whether layers that see a window of tokens have a cache of their own, for that alone (they have)"
    build.add_argument("--layer-groups", action=BooleanOptionalAction, help=groups)
    build.add_argument("--attention", help="fused or packed (fused)")
    build.add_argument("--context", type=int, help="the most tokens of a sequence (the model's)")
    build.add_argument("--rope", help="long or short factors, where an export has both (auto: those for the context)")
    build.set_defaults(run=_build)

    chat = _add_model(commands, "chat", "a conversation in the terminal")
    chat.add_argument("--system", help="the system message")
    _add_engine(chat)
    _add_sampling(chat, "what the context has room for")
    chat.set_defaults(run=_chat, temperature=0.7, top_p=0.95)

    generate = _add_model(commands, "generate", "continue prompts, all in one batch")
    generate.add_argument("prompts", metavar="PROMPT", nargs="+", help="a text, or - for standard input")
    generate.add_argument("--chat", action="store_true", help="a prompt is the first message of a conversation")
    _add_context_shift(generate)
    _add_engine(generate)
    _add_sampling(generate, "128")
    generate.set_defaults(run=_generate)

    perplexity = _add_model(commands, "perplexity", "perplexity of a text, with the cache in use")
    perplexity.add_argument("file", metavar="FILE", help="a text in UTF-8")
    perplexity.add_argument("--context", type=int, default=512, help="tokens of a window (512)")
    perplexity.add_argument("--threads", type=int, default=0, help="of ONNX Runtime, 0 for all processors (0)")
    perplexity.set_defaults(run=_perplexity)

    serve = _add_model(commands, "serve", "OpenAI's HTTP interface")
    serve.add_argument("--host", help="the address to listen at (127.0.0.1)")
    serve.add_argument("--port", type=int, help="0 for any free one (8000)")
    serve.add_argument("--name", help="the model's name for clients (its own)")
    serve.add_argument("--max-requests", type=int, help="requests that run and wait; others get 503 (256)")
    serve.add_argument("--grace", type=float, help="seconds that requests get at shutdown (5)")
    key = os.environ.get("KVCACHE_API_KEY") or None
    serve.add_argument("--api-key", default=key, help="the key that clients must send ($KVCACHE_API_KEY)")
    serve.add_argument("--allow-origin", action="append", help="a page's origin, or *; several times (CORS)")
    serve.add_argument("--stuck-after", type=float, help="seconds of a step until /health says so (30)")
    serve.add_argument("--keep-alive", type=float, help="seconds until idle connections end (75)")
    _add_context_shift(serve)
    _add_engine(serve)
    serve.set_defaults(run=_serve)


def _add_model(commands: _SubParsersAction[ArgumentParser], name: str, help: str) -> ArgumentParser:
    parser = commands.add_parser(name, help=help)
    parser.add_argument("model", metavar="MODEL", help="a folder written by build, or a source, which is built once")
    _add_formats(parser)
    return parser


def _add_formats(parser: ArgumentParser) -> None:
    parser.add_argument("--weights", help="auto (as they are); float ones: float32, float16, int8 or int4")
    parser.add_argument("--cache", help="float32, float16, int8 or int4 (int8)")
    parser.add_argument("--quant-group", type=int, help="elements that share a scale (32)")
    rotation = "rotate keys before they are quantized (on for int4)"
    parser.add_argument("--rotation", action=BooleanOptionalAction, help=rotation)


def _add_context_shift(parser: ArgumentParser) -> None:
    shift = "beyond the context, drop half of it: oldest messages, and tokens after the beginning"
    parser.add_argument("--context-shift", action="store_true", help=shift)


def _add_engine(parser: ArgumentParser) -> None:
    parser.add_argument("--max-tokens", type=int, help="slots of the cache (the model's context, at most 16384)")
    windows = "slots of a cache of layers with a window (for a step and 4 windows or more)"
    parser.add_argument("--window-tokens", type=int, help=windows)
    parser.add_argument("--max-batch", type=int, help="answers computed at once (16)")
    parser.add_argument("--token-budget", type=int, help="tokens of a step (512)")
    lookup = "how many guessed tokens a step checks, taken from earlier text (0)"
    parser.add_argument("--prompt-lookup", type=int, help=lookup)
    parser.add_argument("--threads", type=int, help="of ONNX Runtime, 0 for all processors (0)")
    tiers = (
        "where prefixes are kept beyond the cache: host:4G, file:FOLDER,20G, redis://..., s3://...; the nearest first"
    )
    parser.add_argument("--tier", action="append", default=[], help=tiers)


def _add_sampling(parser: ArgumentParser, max_new_tokens: str) -> None:
    parser.add_argument("--max-new-tokens", type=int, help=f"at most this many tokens ({max_new_tokens})")
    parser.add_argument("--temperature", type=float, help="0 takes the likeliest token")
    parser.add_argument("--top-k", type=int, help="only the k likeliest tokens, 0 for all")
    parser.add_argument("--top-p", type=float, help="only the likeliest tokens that together have this probability")
    parser.add_argument("--min-p", type=float, help="only tokens of at least this share of the highest probability")
    parser.add_argument("--seed", type=int, help="equal seeds give equal answers")
    parser.add_argument("--stop", action="append", help="a text that ends the answer; may be given several times")


def _given(given: Namespace, function: Callable[..., Any]) -> dict[str, Any]:
    """The options that were given, or have another default than the library's, of those that a function takes."""
    return {name: value for name in signature(function).parameters if (value := getattr(given, name, None)) is not None}


@contextmanager
def _bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, on a terminal."""
    with load_package("tqdm", title, "models").tqdm(desc=title, unit=unit, disable=None, leave=False) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress


def _open(given: Namespace, chat: bool = False) -> Model:
    from kvcache_ops import models

    with terminable(), _bar("building", " tensors") as progress:
        options = _given(given, models.open_model) | {"chat": chat}
        return models.open_model(given.model, progress=progress, **options)


def _engine(given: Namespace, chat: bool = False) -> Engine:
    """An engine of a model, which may have to be built: what can be refused before that, is."""
    from kvcache_ops.engine import Engine
    from kvcache_ops.manager import tier
    from kvcache_ops.models._model import session_options
    from kvcache_ops.text._sampling import Sampling

    tiers = [tier(address) for address in given.tier]
    Sampling(**_given(given, Sampling))
    session_options(given.threads or 0)
    options = _given(given, Engine) | {"model": _open(given, chat), "tiers": tiers}
    try:
        return Engine(**options)
    except TypeError as error:  # of a host that is not the first
        raise KvCacheError(str(error), "tier_address") from error


def _build(given: Namespace) -> int:
    from kvcache_ops import models

    with _bar("building", " tensors") as progress:
        path = models.build(progress=progress, **_given(given, models.build))
    size = sum(file.stat().st_size for file in path.parent.iterdir())
    model = models.load(path)
    print(f"{path.parent}: {size / 1e6:,.1f} MB, {_cache(model)}", *model.notes, sep="\n")
    return 0


def _cache(model: Model) -> str:
    """What a user wants to know of a model's cache."""
    cache = model.cache
    group = f" in groups of {cache.quant_group}" if cache.quant_bit else ""
    group += ", keys rotated" if cache.quant_rotation else ""
    groups = model.layer_groups
    kept = [f"{groups.of.count(i)} layers keep {window} tokens" for i, window in enumerate(groups.windows) if window]
    return ", ".join([f"{cache.cache_dtype} cache{group}, {cache.bytes_per_token:,} bytes per token", *kept])


def _chat(given: Namespace) -> int:
    engine = _engine(given, chat=True)
    from kvcache_ops.cli._chat import Chat
    from kvcache_ops.text._sampling import Sampling

    with closing(engine):
        return Chat(engine, given.system, **_given(given, Sampling)).run()


def _generate(given: Namespace) -> int:
    prompts = [sys.stdin.read() if prompt == "-" else prompt for prompt in given.prompts]
    engine = _engine(given, given.chat)
    from kvcache_ops.cli._generate import generate
    from kvcache_ops.text._sampling import Sampling

    with closing(engine):
        return generate(engine, prompts, given.chat, given.context_shift, **_given(given, Sampling))


def _perplexity(given: Namespace) -> int:
    text = Path(given.file).read_text(encoding="utf-8")
    model = _open(given)
    from kvcache_ops import models

    with _bar("perplexity", " tokens") as progress:
        found = models.perplexity(model, text, context=given.context, threads=given.threads, progress=progress)
    print(f"perplexity {found}, {found.tokens:,} tokens in {found.windows} windows of {given.context}; {_cache(model)}")
    return 0


def _serve(given: Namespace) -> int:
    from kvcache_ops.serve import serve  # before a build: its packages may not be there

    serve(_engine(given), **_given(given, serve))
    return 0
