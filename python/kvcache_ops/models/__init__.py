"""ONNX models with a KV cache of these operators, from checkpoints and exports.

    path = kvcache_ops.models.build("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2", cache="int8")

A GGUF file or a Hugging Face folder of the families Llama (Mistral among them), Qwen2 and Qwen3 becomes a graph that
takes the tokens of a ragged batch and the index tensors of a step of `kvcache_ops.manager`; so does an ONNX export of
any family with GroupQueryAttention. Needs the extra `models`.
"""

from kvcache_ops._optional import require

for _package in ("onnx", "tokenizers", "gguf", "safetensors"):
    require(_package, "models")

from kvcache_ops.models._build import build  # noqa: E402
from kvcache_ops.models._chat_template import ChatTemplate  # noqa: E402
from kvcache_ops.models._config import Config  # noqa: E402
from kvcache_ops.models._model import Model, load  # noqa: E402
from kvcache_ops.models._perplexity import Perplexity, perplexity  # noqa: E402
from kvcache_ops.models._sources import open_model  # noqa: E402

__all__ = ["ChatTemplate", "Config", "Model", "Perplexity", "build", "load", "open_model", "perplexity"]
