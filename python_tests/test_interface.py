"""The names of `kvcache_ops`, as programs rely on them."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from shutil import copyfile

import kvcache_ops
import pytest
from kvcache_ops import CacheSpec, KvCacheError
from kvcache_ops.manager import CapacityError, ManagerError

STEP = ["seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"]
PACKED = ["query", "key", "value", "seqstarts", "kvstarts", "decoding_batches", "max_seqlen", "max_kvlen", "attn_mask"]
CACHED = ["query", "current_key", "current_value", *STEP[:4], "decoding_batches", *STEP[4:]]
CACHED += ["cache", "scale", "attn_mask"]
CALL = ["attributes", "current_key", "current_value", *STEP, "cache", "scale"]

PARAMETERS = {
    "run": [*CALL, "key", "value", "more"],
    "check": [*CALL, "more"],
    "multi_head_attention": ["attributes", *PACKED, "attn_output", "more"],
    "check_multi_head_attention": ["attributes", *PACKED, "more"],
    "multi_head_cache_attention": ["attributes", *CACHED, "attn_output", "more"],
    "check_multi_head_cache_attention": ["attributes", *CACHED, "more"],
    "make_node": ["op_type", "inputs", "outputs", "attributes", "domain", "name", "more"],
    "step_indices": ["seqlens", "start_pos", "cachestarts", "pages", "page_slots", "page_size", "aligned", "max_pages"],
    "pack_int4": ["values"],
    "unpack_int4": ["packed"],
    "register": ["session_options"],
    "library_path": [],
}
FIELDS = {
    "max_tokens": None,
    "num_kv_heads": None,
    "head_dim": None,
    "dtype": "float16",
    "num_layers": 1,
    "cache_layout": 0,
    "quant_bit": 0,
    "quant_group": 8,
    "cache_dtype": None,
    "scale_dtype": None,
    "cache_mode": 0,
    "page_size": 128,
}


def test_sources_that_shadow_the_package(tmp_path: Path) -> None:
    """They say so, and not that an import is circular."""
    (tmp_path / "kvcache_ops").mkdir()
    copyfile(kvcache_ops.__file__, tmp_path / "kvcache_ops/__init__.py")
    command = [sys.executable, "-c", "import kvcache_ops"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"ImportError: {tmp_path}/kvcache_ops has the sources of kvcache_ops, not its compiled module" in run.stderr


def test_names() -> None:
    """Those that are published, and no other."""
    others = {"CACHE_LAYOUTS", "DOMAIN", "Cache", "CacheSpec", "KvCacheError", "StepIndices", "__version__"}
    assert set(kvcache_ops.__all__) == others | set(PARAMETERS)
    assert kvcache_ops.DOMAIN == "opmx.dynamic_batching"


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    """Names and order, which are the operator's, and a docstring."""
    function = getattr(kvcache_ops, name)
    assert list(inspect.signature(function).parameters) == PARAMETERS[name]
    assert len(inspect.getdoc(function)) > 60 or name == "library_path"


def test_fields_of_a_spec() -> None:
    """Names, order and defaults."""
    names = [field.name for field in fields(CacheSpec)]
    assert names == list(FIELDS)
    spec = CacheSpec(8, 1, 8, cache_dtype="float16")
    given = {"max_tokens": 8, "num_kv_heads": 1, "head_dim": 8, "cache_dtype": "float16"}
    assert {name: getattr(spec, name) for name in names} == FIELDS | given
    assert hash(spec) == hash(CacheSpec(8, 1, 8))


def test_errors_can_be_pickled() -> None:
    """With their kinds; those of the manager are of the same class."""
    with pytest.raises(KvCacheError) as caught:
        CacheSpec(8, 1, 9, quant_bit=4)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.kind, str(copy)) == (KvCacheError, "head_dim_not_divisible", str(caught.value))
    assert issubclass(KvCacheError, ValueError) and issubclass(CapacityError, ManagerError)
    assert issubclass(ManagerError, KvCacheError)
