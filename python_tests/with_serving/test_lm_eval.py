"""lm-evaluation-harness scores ten items through the server: by `local-completions`, echoed prompts and logprobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvcache_ops.engine import Engine

from served import path, serving
from tiny_models import SPECIAL

__all__ = ["path"]  # a fixture

TASK = """
task: ten_items
dataset_path: json
dataset_kwargs: {data_files: {test: ITEMS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list: [{metric: acc}]
"""
ITEMS = [(f"the number {i} is", [f"the {i}", f"of {i * i}", "neither", "42"]) for i in range(10)]


def test_ten_items(path: Path, tmp_path: Path) -> None:
    """Each choice has the logprob that the engine computes itself."""
    items = tmp_path / "items.jsonl"
    items.write_text("".join(json.dumps({"question": q, "choices": c}) + "\n" for q, c in ITEMS))
    (tmp_path / "ten.yaml").write_text(TASK.replace("ITEMS", str(items)))
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_bytes((path.parent / "tokenizer.json").read_bytes())
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(about))
    with serving(path) as server:
        address = f"http://127.0.0.1:{server.port}/v1/completions"
        model = f"model=tiny,base_url={address},tokenizer_backend=huggingface,tokenizer={tokenizer},num_concurrent=4"
        command = ["-m", "lm_eval", "--model", "local-completions", "--model_args", model, "--tasks", "ten_items"]
        more = ["--include_path", tmp_path, "--output_path", tmp_path / "out", "--log_samples"]
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
        subprocess.run([sys.executable, *command, *more], env=os.environ | offline, check=True, timeout=300)
        [samples] = (tmp_path / "out").rglob("samples_ten_items_*.jsonl")
        scored = [json.loads(line) for line in samples.read_text().splitlines()]
    engine = Engine(path, max_tokens=512, threads=1)
    encode = engine.model.encode
    for sample in scored:
        question, choices = ITEMS[sample["doc_id"]]
        asked = sample["arguments"].values()
        assert [one["arg_0"] + one["arg_1"] for one in asked] == [f"{question} {choice}" for choice in choices]
        for one, [[logprob, is_greedy]] in zip(asked, sample["resps"]):
            tokens = encode(one["arg_0"] + one["arg_1"], add_special_tokens=False)
            [request] = engine.generate([tokens], prompt_logprobs=1, max_new_tokens=0)
            expected = request.prompt_logprobs[len(encode(one["arg_0"], add_special_tokens=False)) :]
            assert float(logprob) == pytest.approx(sum(token.logprob for token in expected), rel=1e-9)
            assert str(is_greedy) == str(all(token.top[0][0] == token.token for token in expected))
    assert len(scored) == 10
