"""Packages that only parts of this one need."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from kvcache_ops._errors import KvCacheError


def require(name: str, extra: str = "") -> None:
    """Raises an ImportError that says what to install where the package `name` is not there."""
    try:
        import_module(name)
    except ImportError as error:
        raise ImportError(
            f"this part of kvcache_ops needs the package {name}: {_hint(name, extra)}", name=name
        ) from error


def load(module: str, what: str, extra: str = "") -> Any:
    """A module of such a package, for a function, which is called `what`. Raises KvCacheError "package_missing"."""
    package = module.partition(".")[0]
    if package == "onnxruntime":  # which else writes a device id below ~/.cache when it is imported
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return import_module(module)
    except ImportError as error:
        message = f"{what} needs the package {package}: {error}; {_hint(package, extra)}"
        raise KvCacheError(message, "package_missing") from error


def _hint(package: str, extra: str) -> str:
    """The command that installs a package, or the extra that brings it."""
    return f"pip install './python[{extra}]' in a checkout" if extra else f"pip install {package}"
