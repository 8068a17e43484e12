"""Writes the reference page of each operator, like docs/KeyValueCache.md from schema/key_value_cache.yaml.

`python docs/operator_pages.py` writes the pages; with `--check` it compares instead and fails if one is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "python"))

from schemas import part  # noqa: E402

Entry = dict[str, Any]
HEADER = """<!-- Generated from schema/{file}; edit that file, then run
     `python docs/operator_pages.py`. -->
# {title}

{summary}

Domains {domains}; version {version}.

Dimensions:
"""


def page(file: str, schema: Entry, title: str) -> str:
    """The whole page of the schema in `file`, as Markdown."""
    facts = dict(title=title, summary=schema["summary"], domains=code(*schema["domains"]), version=schema["version"])
    lines = [HEADER.format(file=file, **facts)]
    lines += [f"- **{name}**: {meaning}" for name, meaning in schema["dimensions"].items()]
    lines.append("\n## Attributes\n\nAll are integers; an absent one takes its default.\n")
    lines += table(["name", "default", "range", "meaning"], schema["attributes"], lambda row: [
        code(row["name"]), "required" if row.get("required") else row["default"], limits(row, schema), row["meaning"]
    ])  # fmt: skip
    lines += rules(schema, "attributes")
    if modes := schema.get("cache_modes"):
        lines.append("\n## Cache modes\n")
        lines += table(["cache_mode", "name", "shape of cachestarts", "meaning"], modes, lambda row: [
            code_of_rule("cache-mode", row), row["name"], shape(row["cachestarts"]), row["meaning"]
        ])  # fmt: skip
        lines += rules(schema, "cache_modes")
    if layouts := schema.get("cache_layouts"):
        lines.append("\n## Cache layouts\n")
        lines += table(["cache_layout", "name", "cache", "scale"], layouts, lambda row: [
            code_of_rule("cache-layout", row),
            row["name"],
            *(shape([*row["axes"], inner]) for inner in ("Dh", "Dh/quant_group")),
        ])  # fmt: skip
    for heading, key in (("Inputs", "inputs"), ("Outputs", "outputs")):
        lines.append(f"\n## {heading}\n")
        lines += table(["name", "type", "shape", "meaning"], schema[key], operand)
        lines += rules(schema, key)
    lines.append("\n## Types\n")
    lines += [f"- **{name}**: {code(*types)}" for name, types in schema["types"].items()]
    known = [*schema.get("combinations", []), *schema.get("extensions", [])]
    if legal := [row for row in known if row["T1"] in schema["types"]["T1"]]:
        lines.append(
            "\nLegal combinations; without quantization a scale of any T3 may be given and is left untouched.\n"
        )
        names = ["quant_bit", "T1", "T2", "T3"]
        lines += table(names, legal, lambda row: [row.get(name, "none") for name in names])
    lines += rules(schema, "types")
    lines += ["\n## Rules", *rules(schema, None)]
    return "\n".join(lines) + "\n"


def operand(row: Entry) -> list[object]:
    """The cells of an input or output."""
    flags = dict(in_out="*Modified in place.*", optional="*Optional.*")
    meaning = " ".join([*(words for flag, words in flags.items() if row.get(flag)), row["meaning"]])
    shapes = [shape(row[key]) for key in ("shape", "or_shape") if key in row]
    return [code(row["name"]), row["type"], " or ".join(shapes), meaning]


def rules(schema: Entry, section: str | None) -> list[str]:
    """The rules of a section, each with its anchor."""
    lines = []
    for rule in schema["rules"]:
        if rule.get("section") == section:
            reason = rule.get("not_proven_by_cases")
            more = f" *Not proven by golden cases: {reason}*" if reason else ""
            lines.append(f"- {anchor(rule['id'])}**{rule['title']}** (`{rule['id']}`). {rule['text']}{more}")
    return ["", *lines] if lines else []


def anchor(rule: str) -> str:
    """The place of a rule on the page, `#rule-ID`."""
    return f'<a id="rule-{rule}"></a>'


def code_of_rule(table: str, row: Entry) -> str:
    """The code of a row that is a rule, with the rule's anchor."""
    return anchor(f"{table}.{row['code']}") + str(row["code"])


def code(*words: object) -> str:
    """Words as code, one after the other."""
    return ", ".join(f"`{word}`" for word in words)


def shape(value: list[object] | str) -> str:
    """A list of axes, or words."""
    return value if isinstance(value, str) else f"`({', '.join(map(str, value))})`"


def limits(attribute: Entry, schema: Entry) -> str:
    """The range of an attribute."""
    codes = schema.get(attribute.get("codes_of", ""))
    if "one_of" in attribute:
        words = f"one of {code(*attribute['one_of'])}"
    elif "max" in attribute or codes:
        words = f"{attribute['min']} to {attribute['max'] if 'max' in attribute else codes[-1]['code']}"
    elif "below" in attribute:
        words = f"{attribute['min']} to `{attribute['below']}` - 1"
    else:
        words = f"at least {attribute['min']}"
    for key, text in (
        ("divides", ", a divisor of `{}` where it is not 0"),
        ("with_quant_bit", ", other than 0 only where `quant_bit` is {}"),
        ("even_with_quant_bit", ", even where `quant_bit` is {}"),
    ):
        words += text.format(attribute[key]) if key in attribute else ""
    return words


def table(head: list[str], rows: Iterable[Entry], cells: Callable[[Entry], list[object]]) -> list[str]:
    """A table of these rows."""
    lines = [head, *map(cells, rows)]
    texts = [f"| {' | '.join(map(str, line))} |" for line in lines]
    return [texts[0], "|" + " --- |" * len(head), *texts[1:]]


def main() -> int:
    """Writes the pages, or compares."""
    files = sorted((ROOT / "schema").glob("*.yaml"))
    schemas = {(schema := yaml.safe_load(file.read_text())).get("page", schema["name"]): schema for file in files}
    outdated = 0
    for file, (title, schema) in zip(files, schemas.items()):
        parts = {key: part(schemas, title, key) for key in schema if key != "quantization"}
        text = page(file.name, parts, title)
        path = ROOT / "docs" / f"{title}.md"
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} is out of date with {file}: run `python docs/operator_pages.py`", file=sys.stderr)
            outdated = 1
    return outdated


if __name__ == "__main__":
    sys.exit(main())
