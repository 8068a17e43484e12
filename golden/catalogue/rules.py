"""The ids of the rules that a case may prove: those of the schemas."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).resolve().parents[2] / "schema"
FILES = {
    "KeyValueCache": "key_value_cache.yaml",
    "MultiHeadAttention": "multi_head_attention.yaml",
    "MultiHeadCacheAttention": "multi_head_cache_attention.yaml",
    "StaticKeyValueCache": "static_key_value_cache.yaml",
}
# The tables of which each row is a rule.
TABLES = {"cache_modes": "cache-mode", "cache_layouts": "cache-layout"}


@cache
def schema(page: str) -> dict[str, Any]:
    return yaml.safe_load((SCHEMAS / FILES[page]).read_text())


def table(page: str, name: str) -> list[dict[str, Any]]:
    """The rows of a table, of another operator's where the schema says so."""
    rows = schema(page).get(name, [])
    return rows if isinstance(rows, list) else table(rows["as_in"], name)


@cache
def provable(page: str) -> frozenset[str]:
    """The rules of an operator that cases can prove."""
    rows = {f"{prefix}.{row['code']}" for name, prefix in TABLES.items() for row in table(page, name)}
    return frozenset(
        rows | {rule["id"] for rule in map(resolved, schema(page)["rules"]) if "not_proven_by_cases" not in rule}
    )


def resolved(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule as the operator states it that it is taken from."""
    if "as_in" not in rule:
        return rule
    (origin,) = (other for other in schema(rule["as_in"])["rules"] if other["id"] == rule["id"])
    return resolved(origin)


def named(page: str, ids: str, case: str) -> list[str]:
    """The rules of an operator in a text that separates them by spaces: at least one, each of them once."""
    rules = ids.split()
    assert rules and len(set(rules)) == len(rules), f"{case} proves {ids!r}"
    unknown = set(rules) - provable(page)
    assert not unknown, f"{case} proves {unknown}, which {page} does not state or no case can prove"
    return rules
