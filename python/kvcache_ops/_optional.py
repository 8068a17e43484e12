"""Packages that only a part of this one needs."""

from __future__ import annotations

from importlib import import_module


def require(name: str, extra: str | None = None) -> None:
    """Raises an ImportError that says what to install where the package `name` is not there."""
    try:
        import_module(name)
    except ImportError as error:
        hint = f"pip install 'kvcache_ops[{extra or name}]'"
        raise ImportError(f"this part of kvcache_ops needs the package {name}: {hint}", name=name) from error
