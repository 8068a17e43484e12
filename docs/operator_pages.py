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
sys.path.append(str(ROOT / "python"))

from schemas import part  # noqa: E402

Entry = dict[str, Any]


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
        text = template.render(file=file.name, title=title, schema=schema, legal=legal, limits=limits)
        path = ROOT / "docs" / f"{title}.md"
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} is out of date with {file}: run `python docs/operator_pages.py`", file=sys.stderr)
            outdated = 1
    return outdated


if __name__ == "__main__":
    sys.exit(main())
