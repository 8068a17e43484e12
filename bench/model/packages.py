"""Packages of peers, which need not be installed: PEERS has further folders to look for them."""

from __future__ import annotations

import os
import site
from importlib.metadata import PackageNotFoundError, version

for folder in os.environ.get("PEERS", "").split():
    site.addsitedir(folder)


def titled(package: str, *needed: str) -> str | None:
    """A package's name and version; None where it is not installed, or one that it needs."""
    try:
        for other in needed:
            version(other)
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None
