"""llama.cpp, as node-llama-cpp ships it compiled, by the C interface of its libllama: include/llama.h at v0.5.0."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path

import numpy as np

from ours import Chunked

LIBRARIES = Path(os.environ.get("LLAMA_CPP") or "nowhere")
VERSION = "v0.5.0"
CACHES = {"float32": 0, "float16": 1, "int8": 8, "int4": 2}  # enum ggml_type: F32, F16, Q8_0, Q4_0
FLASH_ATTENTION = 1


class ModelParams(Structure):
    """struct llama_model_params, of which nothing is set."""

    _fields_ = [("pointers", c_void_p * 2), ("numbers", c_int32 * 5), ("more", c_void_p * 4), ("switches", c_bool * 6)]


class ContextParams(Structure):
    """struct llama_context_params; what is not set or read goes by its type."""

    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("sizes", c_uint32 * 3),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("types", c_int32 * 4),
        ("flash_attn_type", c_int32),
        ("rope", c_float * 6),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p * 2),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("abort_callback", c_void_p * 2),
        ("switches", c_bool * 5),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]


class Batch(Structure):
    """struct llama_batch."""

    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


# What functions take and give, where it is not an int.
SIGNATURES = {
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_free": (None, [c_void_p]),
    "llama_model_free": (None, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_batch_init": (Batch, [c_int32, c_int32, c_int32]),
    "llama_batch_free": (None, [Batch]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_get_logits_ith": (POINTER(c_float), [c_void_p, c_int32]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_log_set": (None, [c_void_p, c_void_p]),
}


def library() -> ctypes.CDLL:
    """libllama with the fastest of its CPU libraries for this machine."""
    ggml = ctypes.CDLL(str(LIBRARIES / f"libggml.{VERSION}.so"), mode=ctypes.RTLD_GLOBAL)
    llama = ctypes.CDLL(str(LIBRARIES / f"libllama.{VERSION}.so"))
    for name, (restype, argtypes) in SIGNATURES.items():
        function = getattr(llama, name)
        function.restype, function.argtypes = restype, argtypes
    llama.llama_log_set(SILENT, None)
    ggml.ggml_backend_load_all_from_path(str(LIBRARIES.resolve()).encode())
    return llama


SILENT = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(lambda *_: None)


class LlamaCpp(Chunked):
    """The model with a context of `sequences` sequences of `length` tokens, each with a cache of its own, and one more.

    flash attention is on, which quantized values need. Weights are mapped, and repacked where llama.cpp can do so.
    rotation: whether keys and values of quantized caches are multiplied by a Hadamard matrix.
    """

    def __init__(
        self, source: str, cache: str, sequences: int, length: int, threads: int, rotation: bool = True
    ) -> None:
        os.environ["LLAMA_ATTN_ROT_DISABLE"] = str(int(not rotation))
        self._llama = llama = library()
        self._model = model = llama.llama_model_load_from_file(source.encode(), llama.llama_model_default_params())
        params = llama.llama_context_default_params()
        if (params.n_batch, params.n_ubatch, params.type_k, params.kv_unified) != (2048, 512, 1, False):
            raise RuntimeError(f"libllama's structures have another layout than in {VERSION}")
        params.n_ctx, params.n_seq_max = (sequences + 1) * length, sequences + 1
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = CACHES[cache]
        params.flash_attn_type = FLASH_ATTENTION
        self._context = llama.llama_init_from_model(model, params) if model else None
        if not self._context:
            raise RuntimeError(f"llama.cpp opens no context of {sequences} sequences for {source}")
        self._memory = llama.llama_get_memory(self._context)
        self._batch, self.chunk = llama.llama_batch_init(params.n_batch, 0, 1), params.n_batch
        self._vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        self._lengths: dict[int, int] = {}

    def close(self) -> None:
        """Frees the context and the model."""
        self._llama.llama_batch_free(self._batch)
        self._llama.llama_free(self._context)
        self._llama.llama_model_free(self._model)

    def clear(self, sequence: int) -> None:
        """Empties a sequence."""
        self._llama.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._lengths[sequence] = 0

    def step(self, tokens: dict[int, list[int]], every: bool = False) -> np.ndarray:
        """Appends tokens to sequences; the logits of the last of each, or of every token, in the order of the batch."""
        batch, n, rows = self._batch, 0, []
        for sequence, appended in tokens.items():
            for token in appended:
                batch.token[n], batch.pos[n], batch.logits[n] = token, self._lengths[sequence], every
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
                self._lengths[sequence] += 1
                n += 1
            batch.logits[n - 1] = 1
            rows += range(n - len(appended), n) if every else [n - 1]
        batch.n_tokens = n
        if self._llama.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode refuses {n} tokens")
        shape = (self._vocab_size,)
        return np.stack(
            [np.ctypeslib.as_array(self._llama.llama_get_logits_ith(self._context, i), shape) for i in rows]
        )

    def place(self, sequences: int, source: int, tokens: list[int]) -> None:
        """Gives the first `sequences` copies of the source's first rows, the rows of `tokens`."""
        for sequence in range(sequences):
            self.clear(sequence)
            if tokens:
                self._llama.llama_memory_seq_cp(self._memory, source, sequence, -1, -1)
                self._llama.llama_memory_seq_rm(self._memory, sequence, len(tokens), -1)
            self._lengths[sequence] = len(tokens)
