"""Writes what the package needs of the operators' schemas (schema/*.yaml) as one JSON file, `as_in` resolved.

`python python/schemas.py` writes the file; with `--check` it compares instead and fails if the file is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
TARGET = FOLDER / "kvcache_ops" / "ops" / "schemas.json"
# What the page says of an operator beyond its inputs, and its codes, stay in the YAML.
KEPT = ("name", "domains", "version", "summary", "dimensions", "attributes", "inputs", "outputs", "types", "rules")
LISTS = ("attributes", "inputs", "outputs", "rules")


def resolved(schemas: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The operators; an entry that is `as_in` another operator gets that operator's fields, under its own."""
    return [{key: part(schemas, page, key) for key in KEPT} for page in schemas]


def part(schemas: dict[str, dict[str, Any]], page: str, key: str) -> Any:
    """One part of an operator's schema."""
    value = schemas[page][key]
    if key in LISTS:
        label = "id" if key == "rules" else "name"
        return [entry(schemas, key, label, item) for item in value]
    if isinstance(value, dict) and list(value) == ["as_in"]:
        return part(schemas, value["as_in"], key)
    if isinstance(value, dict):
        return {name: named(schemas, key, name, item) for name, item in value.items()}
    return value


def named(schemas: dict[str, dict[str, Any]], key: str, name: str, item: Any) -> Any:
    """One entry of a map; of a list `as_in` another operator all but what is `without`."""
    if not isinstance(item, dict):
        return item
    origin = part(schemas, item["as_in"], key)[name]
    return [one for one in origin if one not in item["without"]] if "without" in item else origin


def entry(schemas: dict[str, dict[str, Any]], key: str, label: str, item: dict[str, Any]) -> dict[str, Any]:
    """One entry of a list."""
    if "as_in" not in item:
        return item
    others = part(schemas, item["as_in"], key)
    (origin,) = (other for other in others if other[label] == item[label])
    return origin | {name: value for name, value in item.items() if name != "as_in"}


def main() -> int:
    """Writes the file, or compares."""
    files = sorted((FOLDER.parent / "schema").glob("*.yaml"))
    schemas = [yaml.safe_load(file.read_text()) for file in files]
    # Two operators of different domains may have one name; `as_in` has the page's name.
    operators = resolved({schema.get("page", schema["name"]): schema for schema in schemas})
    text = json.dumps(operators, indent=1, ensure_ascii=False) + "\n"
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        print(f"{TARGET} is out of date with schema/*.yaml: run `python python/schemas.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
