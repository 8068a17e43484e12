"""What the examples and this suite state of the operator is what `key_value_cache.yaml` states."""

from __future__ import annotations

from pathlib import Path

import yaml

from kvcache import DOMAIN, LAYOUT_AXES
from node import INPUTS
from setting import LEGAL_TYPES, TYPE_NAMES, Setting
from test_refusals import DEFAULTS, DOMAINS

SCHEMA = yaml.safe_load((Path(__file__).parents[1] / "schema/key_value_cache.yaml").read_text())


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
    """The axes of `cache`, by code."""
    axes = {layout["code"]: tuple(map(str, layout["cache"])) for layout in SCHEMA["cache_layouts"]}
    assert axes == dict(enumerate(LAYOUT_AXES))


def test_types() -> None:
    """The table of types; without quantization T3 is any, or absent."""
    legal = set()
    for row in SCHEMA["combinations"]:
        any_scale = [None, *SCHEMA["types"]["T3"]]
        for t3 in [row["T3"]] if row["quant_bit"] else any_scale:
            legal.add((row["T1"], row["T2"], t3, row["quant_bit"]))
    stated = [(TYPE_NAMES[t1], TYPE_NAMES[t2], t3 and TYPE_NAMES[t3], bits) for t1, t2, t3, bits in LEGAL_TYPES]
    assert len(stated) == len(set(stated)) and set(stated) == legal
