"""Packages that only a part of this one needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kvcache_ops._errors import KvCacheError


def require(name: str) -> None:
    """Raises an ImportError that says what to install where the package `name` is not there."""
    try:
        import_module(name)
    except ImportError as error:
        hint = f"pip install {name}"
        raise ImportError(f"this part of kvcache_ops needs the package {name}: {hint}", name=name) from error


def load(module: str, what: str) -> Any:
    """A module of such a package, for a function, which is called `what`. Raises KvCacheError "package_missing"."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        message = f"{what} needs the package {package}: {error}; pip install {package}"
        raise KvCacheError(message, "package_missing") from error
