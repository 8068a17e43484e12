"""The library as a file: what is in it, and how long it stays loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kvcache import find_library
from node import node_model, node_types
from setting import FLOAT

# Makes a session in a fresh process, drops it, and asks whether the library is still loaded, without loading it.
LOADED_AFTER_A_SESSION = """
import ctypes, gc, os, sys
import onnxruntime

library, model = sys.argv[1], sys.stdin.buffer.read()
for _ in range(2):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    del options, session
    gc.collect()
    ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
"""


def test_no_path_of_the_machine_that_built_it() -> None:
    """Neither the builder's home nor the place of the repository; `make build` keeps them out."""
    content = find_library().read_bytes()
    cargo = os.environ.get("CARGO_HOME") or Path.home() / ".cargo"
    for path in (cargo, Path.home(), Path(__file__).resolve().parents[1]):
        assert f"{path}/".encode() not in content


def test_it_stays_loaded_after_the_last_session() -> None:
    """What it has made for the process, which sessions point to, is neither freed nor made again and again."""
    model = node_model(node_types(FLOAT, FLOAT), {})
    command = [sys.executable, "-c", LOADED_AFTER_A_SESSION, str(find_library())]
    run = subprocess.run(command, input=model, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
