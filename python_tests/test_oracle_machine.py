"""The oracle makes the same files on every processor: no BLAS kernel and no width of vectors changes a bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from numpy._core import _multiarray_umath as numpy_core

GOLDEN = Path(__file__).parents[1] / "golden"

# numpy refuses to start where it is told to leave out a feature that it cannot, or that the processor has not.
FEATURES = [name for name in numpy_core.__cpu_dispatch__ if numpy_core.__cpu_features__[name]]
MACHINE = {"OPENBLAS_CORETYPE": "Sandybridge", "NPY_DISABLE_CPU_FEATURES": " ".join(FEATURES)}

# The modules with the longest sums, and with every conversion. In float64 sums by BLAS, 11 of their cases drifted.
CHECK = """
from pathlib import Path
from catalogue import attention, cases_of, conversion
from catalogue.folder import files

cases = 0
for folder, modules in (("cases", [conversion]), ("attention_cases", [attention.heads, attention.packed])):
    for case in (case for module in modules for case in cases_of(module)):
        cases += 1
        for name, content in files(case).items():
            assert Path(folder, case.name, name).read_bytes() == content, f"{case.name} differs"
assert cases > 50
"""


def test_another_machine_makes_the_same_cases() -> None:
    """Committed cases, made anew in a process that takes an old machine's path through BLAS and numpy."""
    environment = os.environ | MACHINE | {"PYTHONPATH": str(GOLDEN)}
    subprocess.run([sys.executable, "-c", CHECK], cwd=GOLDEN, env=environment, check=True)
