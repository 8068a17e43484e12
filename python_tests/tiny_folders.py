"""Tiny Hugging Face folders: the checkpoints of tiny_models.py as transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from kvcache_ops import models
from safetensors.numpy import save_file

from tiny_models import SIZES, random_tensors, write_gguf

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


GEMMA_NAMES = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm"}


def hugging_face_name(name: str, gemma: bool = False) -> str:
    """transformers' name of a tensor of a GGUF file."""
    *place, part, kind = name.split(".")
    names = NAMES | (GEMMA_NAMES if gemma else {})
    return ".".join([*(["model.layers", place[1]] if place else []), names[part], kind])


def write_folder(folder: Path, family: str = "llama", dtype: type = np.float32, **config: object) -> Path:
    """The checkpoint that `write_gguf` writes, in two files; Llama's q and k rows as transformers has them."""
    folder.mkdir(parents=True)
    tensors = random_tensors(family)
    if family == "llama":
        for name in tensors:
            if ".attn_q." in name or ".attn_k." in name:
                pairs = tensors[name].reshape(-1, SIZES["head_dim"] // 2, 2, SIZES["hidden"])
                tensors[name] = pairs.swapaxes(1, 2).reshape(-1, SIZES["hidden"])
    if gemma := family.startswith("gemma"):  # whose norms are of 1 + weight
        tensors = {name: values - name.endswith("norm.weight") for name, values in tensors.items()}
    named = {
        hugging_face_name(name, gemma): np.ascontiguousarray(values.astype(dtype)) for name, values in tensors.items()
    }
    names = sorted(named)
    for i, part in enumerate((names[:9], names[9:])):
        save_file({name: named[name] for name in part}, folder / f"model-{i}.safetensors")
    facts = {
        "model_type": family,
        "num_hidden_layers": SIZES["layers"],
        "hidden_size": SIZES["hidden"],
        "intermediate_size": SIZES["ffn"],
        "num_attention_heads": SIZES["heads"],
        "num_key_value_heads": SIZES["kv_heads"],
        "head_dim": SIZES["head_dim"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(facts | config))
    source = write_gguf(folder / "tokenizer.gguf", family=family)
    models.load(models.build(source, folder / "tokenizer")).tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{{ messages }}", "bos_token": "<|start|>"})
    )
    return folder
