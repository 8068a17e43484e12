"""The operator's schema as data: `key_value_cache.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

SCHEMA: dict[str, Any] = yaml.safe_load(
    (Path(__file__).resolve().parents[1] / "schema/key_value_cache.yaml").read_text()
)
