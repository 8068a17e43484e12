"""Writes kvcache_ops/selftest.json: the models with which `python -m kvcache_ops doctor` asks ONNX Runtime."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

from kvcache_ops import _native
from kvcache_ops._selftest import CASES, FILE
from kvcache_ops.conformance._models import node_model, operator


def models() -> dict[str, str]:
    """A model of one node, for inputs of any rank, for each case; base64."""
    found = {}
    for suite, names in CASES.items():
        for name in names:
            [case] = [case for case in _native.conformance_cases(suite, None, name, (0, 0)) if case["name"] == name]
            inputs = case["calls"][0][0] | {key: case[key] for key in ("cache", "scale") if case[key] is not None}
            types = {key: element for key, (element, _, _) in inputs.items()}
            of = operator(case["op_type"], inputs)
            model = node_model(of, case["attributes"], types, domain=of.domains[0])
            found[name] = b64encode(model.SerializeToString()).decode()
    return found


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[1] / "kvcache_ops" / FILE
    path.write_text(json.dumps(models(), indent=1) + "\n", encoding="utf-8")
