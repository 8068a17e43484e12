"""Writes the reference page of each operator, like docs/KeyValueCache.md from schema/key_value_cache.yaml.

`make docs` writes the pages, with the library of this build, which resolves what is `as_in` another operator; with
`--check` it compares instead and fails if one is out of date. What stands where is in operator_page.md.jinja.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader
from kvcache_ops import _native

ROOT = Path(__file__).resolve().parents[1]

Entry = dict[str, Any]

# Entries `as_in` another page's become links if they add at most a shape.
LINKED = "dimensions attributes inputs outputs cache_modes cache_layouts combinations rules".split()
SAME = {"id", "name", "as_in", "shape"}


def limits(attribute: Entry, schema: Entry) -> str:
    """The range of an attribute."""
    codes = schema.get(attribute.get("codes_of", ""))
    if "one_of" in attribute:
        words = "one of " + ", ".join(f"`{value}`" for value in attribute["one_of"])
    elif "max" in attribute or codes:
        words = f"{attribute['min']} to {attribute['max'] if 'max' in attribute else codes[-1]['code']}"
    elif "below" in attribute:
        words = f"{attribute['min']} to `{attribute['below']}` - 1"
    elif attribute.get("type") == "float":
        words = f"finite, at least {attribute['min']}" if "min" in attribute else "finite"
    else:
        words = f"at least {attribute['min']}" + (f", not {attribute['not']}" if "not" in attribute else "")
    for key, text in (
        ("divides", ", a divisor of `{}` where it is not 0"),
        ("with_quant_bit", ", other than 0 only where `quant_bit` is {}"),
        ("even_with_quant_bit", ", even where `quant_bit` is {}"),
        ("without_quant_bit", ", 0 where `quant_bit` is {}"),
    ):
        words += text.format(attribute[key]) if key in attribute else ""
    return words


def combined(legal: list[Entry]) -> list[Entry]:
    """Rows of legal types, lists of types in each: every combination of a row is legal."""
    rows = [{key: [row.get(key, "none")] for key in ("quant_bit", "T1", "T2", "T3")} for row in legal]
    for key in ("T3", "T1", "T2"):
        merged: dict[str, Entry] = {}
        for row in rows:
            others = str({name: types for name, types in row.items() if name != key})
            merged.setdefault(others, row | {key: []})[key] += row[key]
        rows = list(merged.values())
    return sorted(rows, key=lambda row: row["quant_bit"])


def origins(whole: Entry, key: str) -> Entry:
    """The entries of a list that another page states as a whole, and the name of that page: a link shows them."""
    entries = whole.get(key, [])
    if key == "dimensions":
        return {name: value["as_in"] for name, value in entries.items() if isinstance(value, dict)}
    if isinstance(entries, dict):
        return entries
    own = {table[:-1] for table in ("cache_modes", "cache_layouts") if isinstance(whole.get(table), list)}
    named = {entry.get("id", entry.get("name")): entry for entry in entries}
    whole_entries = {name: entry for name, entry in named.items() if not entry.keys() - SAME and name not in own}
    return {name: entry["as_in"] for name, entry in whole_entries.items() if "as_in" in entry}


def stated(schema: Entry) -> list[str]:
    """The rules that a page states itself."""
    return [rule["id"] for rule in schema["rules"] if rule["id"] not in origins(schema, "rules")]


def elsewhere(schemas: dict[str, Entry], whole: Entry) -> Entry:
    """Other pages whose rules hold here: which do and, but for rules that this page states, which do not."""
    of = origins(whole, "rules")
    pages = dict.fromkeys(of.values())
    holds = {page: [rule for rule in of if of[rule] == page] for page in pages}
    return {page: (holds[page], sorted({*stated(schemas[page])} - {*holds[page], *stated(whole)})) for page in pages}


def main() -> int:
    """Writes the pages, or compares."""
    template = Environment(
        loader=FileSystemLoader(ROOT / "docs"), keep_trailing_newline=True, autoescape=False
    ).get_template("operator_page.md.jinja")
    files = sorted((ROOT / "schema").glob("*.yaml"))
    schemas = {(schema := yaml.safe_load(file.read_text())).get("page", schema["name"]): schema for file in files}
    resolved = {schema.get("page", schema["name"]): schema for schema in _native.schemas()}
    outdated = 0
    for file, (title, whole) in zip(files, schemas.items()):
        schema = resolved[title]
        legal = [*schema.get("combinations", []), *schema.get("extensions", [])]
        text = template.render(
            file=file.name,
            title=title,
            schema=schema,
            rows=combined(legal),
            limits=limits,
            of={key: origins(whole, key) for key in LINKED},
            elsewhere=elsewhere(schemas, whole),
        )
        path = ROOT / "docs" / f"{title}.md"
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} is out of date with {file}: run `make docs`", file=sys.stderr)
            outdated = 1
    return outdated


if __name__ == "__main__":
    sys.exit(main())
