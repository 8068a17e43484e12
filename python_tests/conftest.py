"""The suite sees the built library alone, through ONNX Runtime; it may import the examples and the golden oracle.

Helpers, in the order in which to read them: `compare` (bits and refusals), `sessions` (models of one node, sessions,
runs), `one_node` (calls of the operators), `managed` (managers). `tiny_models`, `tiny_folders` and `tiny_exports` write
models, which `numpy_gguf` computes; `engines` has engines of one, `served` a server, and `tool_templates` its tools.
`pmx_export` writes exports of PMX, which `pmx_numpy` computes and `pmx_steps` runs. `device_call` runs on a GPU, or an
emulated one.
"""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # pytest runs in two processes

import onnxruntime
import pytest

from sessions import find_library

# The environments of older runtimes have no packages for models.
OF_MODELS = [
    "test_model*.py", "test_wild_files.py", "test_engine*.py", "test_serve*.py", "test_text_stream.py",
    "test_grammar.py", "test_layer_groups.py", "test_converters.py", "test_clients.py", "test_tool*.py",
]  # fmt: skip
collect_ignore_glob = [] if find_spec("gguf") else OF_MODELS


def pytest_sessionstart() -> None:
    """Without the library nothing can be tested: one clear line, not hundreds of failures."""
    try:
        find_library()
    except FileNotFoundError as error:
        pytest.exit(str(error), returncode=1)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # what tests start finds what they find
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of models that are built on the way."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvcache_ops" / "models"


def pytest_report_header() -> str:
    """Says what is under test."""
    return f"onnxruntime {onnxruntime.__version__}, operator library {find_library()}"
