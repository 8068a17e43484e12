"""Writes kvcache_ops/cli/selftest.json: the models with which `python -m kvcache_ops doctor` asks ONNX Runtime."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

from kvcache_ops import _native
from kvcache_ops.cli._selftest import FILE, SUITES, key
from kvcache_ops.conformance._models import node_model, operator


def models() -> dict[str, str]:
    """A model of one node, for inputs of any rank, for the calls of each case; base64."""
    found = {}
    for suite, word in SUITES.items():
        for case in _native.conformance_cases(suite, None, word, (0, 0)):
            state = {name: sent for name, sent in (("cache", case.cache), ("scale", case.scale)) if sent is not None}
            inputs = case.calls()[0][0] | state
            types = {name: element for name, (element, _, _) in inputs.items()}
            of = operator(case.op_type, inputs)
            model = node_model(of, case.attributes, types, domain=of.domains[0])
            found[key(of.name, case.attributes, types)] = b64encode(model.SerializeToString()).decode()
    return found


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[1] / "kvcache_ops" / "cli" / FILE
    path.write_text(json.dumps(models(), indent=1) + "\n", encoding="utf-8")
