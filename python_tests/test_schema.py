"""What the examples and this suite state of the operator is what `key_value_cache.yaml` states."""

from __future__ import annotations

from itertools import product

from schema_text import SCHEMA

from kvcache import DOMAIN, LAYOUT_AXES
from node import INPUTS
from oracle.call import Types
from oracle.layouts import LAYOUTS
from oracle.rules import types_go_together
from setting import LEGAL_TYPES, TYPE_NAMES, Setting
from test_refusals import DEFAULTS, DOMAINS


def test_names() -> None:
    """Domains, the current one first, and inputs by position."""
    assert list(DOMAINS) == SCHEMA["domains"] and DOMAIN == DOMAINS[0]
    assert list(INPUTS) == [operand["name"] for operand in SCHEMA["inputs"]]


def test_attributes() -> None:
    """Defaults, also those that a setting has without being told."""
    defaults = {attribute["name"]: attribute["default"] for attribute in SCHEMA["attributes"]}
    assert defaults == DEFAULTS
    assert Setting().attributes == DEFAULTS


def test_layouts() -> None:
    """The oracle has a table of its own; everything else reads the schema's."""
    axes = {layout["code"]: tuple(map(str, layout["axes"])) for layout in SCHEMA["cache_layouts"]}
    assert axes == LAYOUTS and list(axes) == list(range(len(axes)))
    assert LAYOUT_AXES == tuple((*outer, "Dh") for outer in axes.values())


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
