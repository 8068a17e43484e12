"""Writes the reference page of each operator, like docs/KeyValueCache.md from schema/key_value_cache.yaml.

`python docs/operator_pages.py` writes the pages; with `--check` it compares instead and fails if one is out of date.
What stands where is in operator_page.md.jinja.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader

ROOT = Path(__file__).resolve().parents[1]

Entry = dict[str, Any]

# Parts of a schema that are lists of entries.
LISTS = ("attributes", "inputs", "outputs", "rules")

# Entries `as_in` another page's become links if they add at most a shape.
LINKED = "dimensions attributes inputs outputs cache_modes cache_layouts combinations rules".split()
SAME = {"id", "name", "as_in", "shape"}


def part(schemas: dict[str, Entry], page: str, key: str) -> Any:
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


def named(schemas: dict[str, Entry], key: str, name: str, item: Any) -> Any:
    """One entry of a map; of a list `as_in` another operator all but what is `without`."""
    if not isinstance(item, dict):
        return item
    origin = part(schemas, item["as_in"], key)[name]
    return [one for one in origin if one not in item["without"]] if "without" in item else origin


def entry(schemas: dict[str, Entry], key: str, label: str, item: Entry) -> Entry:
    """One entry of a list."""
    if "as_in" not in item:
        return item
    others = part(schemas, item["as_in"], key)
    (origin,) = (other for other in others if other[label] == item[label])
    return origin | {name: value for name, value in item.items() if name != "as_in"}


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
    outdated = 0
    for file, (title, whole) in zip(files, schemas.items()):
        schema = {key: part(schemas, title, key) for key in whole if key != "quantization"}
        known = [*schema.get("combinations", []), *schema.get("extensions", [])]
        legal = [row for row in known if row["T1"] in schema["types"]["T1"]]
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
            print(f"{path} is out of date with {file}: run `python docs/operator_pages.py`", file=sys.stderr)
            outdated = 1
    return outdated


if __name__ == "__main__":
    sys.exit(main())
