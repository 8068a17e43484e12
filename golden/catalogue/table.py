"""Cases that are rows of a table, the YAML files beside this one. A row has

- name, about, and the rules that it proves; `{types}` in a name stands for each of several types;
- types, or a list of types, each of which makes a case; quant_bit follows from them;
- given: sizes and attributes, as `begin` takes them;
- steps: each the sequences of a call, [start_pos, seqlen, place], or a map of these as `batch` and of inputs that are
  replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from .case import Case, Sequence, begin

QUANT_BITS = {"int8": dict(quant_bit=8), "int4": dict(quant_bit=4)}


def cases() -> Iterator[Case]:
    for table in sorted(Path(__file__).parent.glob("*.yaml")):
        for row in yaml.safe_load(table.read_text()):
            for types in [row["types"]] if isinstance(row["types"], str) else row["types"]:
                yield case(row, types)


def case(row: dict[str, Any], types: str) -> Case:
    name, given = row["name"].replace("{types}", types.replace(" ", "-")), row.get("given", {})
    quant = {} if types == "int8 int8" else QUANT_BITS.get(types.split()[1], {})
    made = begin(name, row["about"], types, proves=row["proves"], **quant | given)
    for step in row["steps"]:
        changes = dict(step) if isinstance(step, dict) else {"batch": step}
        made.call(*(Sequence(*sequence) for sequence in changes.pop("batch")), **changes)
    return made
