"""What the examples, the oracle and this suite state of the operator is what the schemas state."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import yaml

from kvcache import DOMAIN, LAYOUT_AXES
from node import DOMAINS, INPUTS, STATIC_DOMAINS, STATIC_INPUTS
from oracle.call import Types
from oracle.layouts import LAYOUTS
from oracle.rules import types_go_together
from oracle.static_batching import STATIC_LAYOUTS
from setting import LEGAL_TYPES, TYPE_NAMES, Setting

FOLDER = Path(__file__).resolve().parents[1] / "schema"
SCHEMA, STATIC = (yaml.safe_load((FOLDER / f"{name}key_value_cache.yaml").read_text()) for name in ("", "static_"))


def layouts(schema: dict) -> dict[int, tuple[str, ...]]:
    """The axes of each layout."""
    return {layout["code"]: tuple(map(str, layout["axes"])) for layout in schema["cache_layouts"]}


def test_names() -> None:
    """Domains, the current one first, inputs by position, layouts, and the defaults of attributes."""
    assert list(DOMAINS) == SCHEMA["domains"] and DOMAIN == DOMAINS[0]
    assert list(STATIC_DOMAINS) == STATIC["domains"]
    for names, schema in ((INPUTS, SCHEMA), (STATIC_INPUTS, STATIC)):
        assert list(names) == [operand["name"] for operand in schema["inputs"]]
    assert layouts(SCHEMA) == LAYOUTS and layouts(STATIC) == STATIC_LAYOUTS
    assert LAYOUT_AXES == tuple((*outer, "Dh") for outer in LAYOUTS.values())
    assert Setting().attributes == {attribute["name"]: attribute["default"] for attribute in SCHEMA["attributes"]}


def test_types() -> None:
    """The table of types; without quantization T3 is any, or absent."""
    legal = set()
    for row in SCHEMA["combinations"]:
        any_scale = [None, *SCHEMA["types"]["T3"]]
        for t3 in [row["T3"]] if row["quant_bit"] else any_scale:
            legal.add((row["T1"], row["T2"], t3, row["quant_bit"]))
    every_type = sorted({name for names in SCHEMA["types"].values() for name in names})
    for quant_bit, t1, t2, t3 in product((0, 4, 8), every_type, every_type, [None, *every_type]):
        # The oracle has another rule for a scale that is missing.
        choices = SCHEMA["types"]["T3"] if t3 is None else [t3]
        expected = any((t1, t2, choice, quant_bit) in legal for choice in choices)
        assert types_go_together(Types(t1, t2, t3), quant_bit) == expected, (t1, t2, t3, quant_bit)
    stated = [(TYPE_NAMES[t1], TYPE_NAMES[t2], t3 and TYPE_NAMES[t3], bits) for t1, t2, t3, bits in LEGAL_TYPES]
    assert len(stated) == len(set(stated)) and set(stated) == legal
