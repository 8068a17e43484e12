"""Compiles the CUDA kernels to PTX, ahead of time: `ptx/<types>.ptx.z`, one module for each combination of types.

    python kernels/src/cuda/generate.py            writes the modules anew
    python kernels/src/cuda/generate.py --check    fails if they differ from what the sources give, or if ptxas finds that
                                                   a kernel spills registers or needs a stack

Needs the packages in requirements.txt beside this file, no GPU and no driver. The same sources and packages give the same
text. The modules are PTX for the oldest GPU that the compiler knows; a driver compiles them for its own. They are written in
the compiler's version of PTX but use nothing that an older one does not have, and so say that they are of the older: a driver
refuses whatever is newer than itself. The assembler of that older CUDA is asked, too.
"""

import argparse
import ctypes
import importlib.util
import re
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

HERE = Path(__file__).parent
SOURCES = HERE / "kernel"
MODULES = HERE / "ptx"
SCHEMA = HERE.parents[2] / "schema/key_value_cache.yaml"

SHORT_NAMES = {"float32": "f32", "float16": "f16", "int8": "i8", "int4": "i4"}
# A module for each row of the table of types, named by its T1, T2 and T3; ptx.rs embeds them.
TYPES = [
    "_".join(SHORT_NAMES[row[name]] for name in ("T1", "T2", "T3") if name in row)
    for row in yaml.safe_load(SCHEMA.read_text())["combinations"]
]
KERNELS = ["store_wide", "store_narrow", "load_wide", "load_narrow"]

OLDEST = "75"
# The version of PTX that the modules need: that of CUDA 12.4, which is the oldest driver's (driver.rs has it).
PTX_VERSION = "8.4"
# Of CUDA 13.0, and of 12.4.
PTXAS, OLDEST_PTXAS = "cu13/bin/ptxas", "cuda_nvcc/bin/ptxas"
# What ptxas looks at: each generation of GPUs, from the oldest.
ARCHITECTURES = ["75", "80", "90", "100", "120"]
OLDEST_PTXAS_ARCHITECTURES = ["75", "80", "90"]
# Registers that a thread may have without making threads wait for room: 4 blocks of 256 threads on a multiprocessor.
MOST_REGISTERS = 64
MOST_BYTES = 1_000_000


def wheel(file: str) -> Path:
    """A file of NVIDIA's wheels."""
    for folder in importlib.util.find_spec("nvidia").submodule_search_locations:
        for path in sorted(Path(folder).rglob(file)):
            return path
    sys.exit(f"{file} is in no nvidia package: install {HERE / 'requirements.txt'}")


class Nvrtc:
    """NVIDIA's run-time compiler."""

    def __init__(self) -> None:
        # Loaded first, since the compiler does not know where to look for it.
        ctypes.CDLL(str(wheel("libnvrtc-builtins.so.*")), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(wheel("libnvrtc.so.*")))

    def _call(self, name: str, *arguments) -> int:
        return getattr(self.library, name)(*arguments)

    def _text(self, program, what: str) -> str:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        # It ends in a NUL, which ptxas refuses.
        return text.value.decode()

    def ptx(self, types: str) -> str:
        """The module for a combination of types."""
        t1, t2, t3 = [*(part.upper() for part in types.split("_")), "None"][:3]
        headers = sorted(SOURCES.glob("*.cuh"))
        texts = (ctypes.c_char_p * len(headers))(*(header.read_bytes() for header in headers))
        names = (ctypes.c_char_p * len(headers))(*(header.name.encode() for header in headers))
        options = [
            f"--gpu-architecture=compute_{OLDEST}",
            "--std=c++17",
            # No result of the kernels depends on these, for they name each operation's rounding.
            "--fmad=false",
            "--prec-div=true",
            "--ftz=false",
            f"-DTYPES={types}",
            f"-DVALUES={t1}",
            f"-DCELLS={t2}",
            f"-DSCALES={t3}",
        ]
        program = ctypes.c_void_p()
        source = (SOURCES / "kernels.cu").read_bytes()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source, b"kernels.cu", len(headers), texts, names)
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = self._call("nvrtcCompileProgram", program, len(options), encoded)
        log = self._text(program, "ProgramLog").strip()
        if failed or log:
            sys.exit(f"{types}: {log or failed}")
        ptx = self._text(program, "PTX")
        self._call("nvrtcDestroyProgram", ctypes.byref(program))
        ptx, found = re.subn(r"^\.version \d+\.\d+$", f".version {PTX_VERSION}", ptx.rstrip() + "\n", flags=re.MULTILINE)
        if found != 1:
            sys.exit(f"{types}: {found} lines tell the version of PTX")
        return ptx


def resources(ptx: str, ptxas: str, architecture: str) -> list[str]:
    """A line for each kernel of a module on an architecture: what an assembler says it takes."""
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "ptx")
        module.write_text(ptx)
        command = [wheel(ptxas), f"-arch=sm_{architecture}", "-v", module, "-o", f"{folder}/cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{ptxas}: {done.stderr}")
    parts = re.split(r"Compiling entry function '(\w+)'", done.stderr)[1:]
    return [f"{ptxas} sm_{architecture} {name}: {' '.join(text.split())}" for name, text in zip(parts[::2], parts[1::2])]


def embedded(name: str) -> str | None:
    """The text of a module in the tree."""
    path = MODULES / name
    return zlib.decompress(path.read_bytes()).decode() if path.exists() else None


def complaints(line: str) -> list[str]:
    """What is wrong with what a kernel takes."""
    taken = {}
    for what in ["stack frame", "spill stores", "spill loads"]:
        found = re.search(rf"(\d+) bytes {what}", line)
        taken[what] = int(found[1]) if found else None
    registers = re.search(r"Used (\d+) registers", line)
    wrong = [f"{what}: {count}" for what, count in taken.items() if count != 0]
    if registers is None or int(registers[1]) > MOST_REGISTERS:
        wrong.append(f"registers: {registers and registers[1]}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing, and ask ptxas")
    parser.add_argument("--verbose", action="store_true", help="print what each kernel takes")
    arguments = parser.parse_args()

    nvrtc = Nvrtc()
    modules = {f"{types}.ptx.z": nvrtc.ptx(types) for types in TYPES}
    if not arguments.check:
        MODULES.mkdir(exist_ok=True)
        for stale in {path.name for path in MODULES.iterdir()} - modules.keys():
            (MODULES / stale).unlink()
        for name, ptx in modules.items():
            # Compressed anew only if it must be: other versions of zlib give other bytes.
            if embedded(name) != ptx:
                (MODULES / name).write_bytes(zlib.compress(ptx.encode(), 9))
    failures = [f"{name} is not what the sources give" for name, ptx in modules.items() if embedded(name) != ptx]
    failures += [f"{path.name} is no module" for path in MODULES.iterdir() if path.name not in modules]
    if failures:
        sys.exit("\n".join([*failures, "run generate.py"]))

    assemblers = [(PTXAS, architecture) for architecture in ARCHITECTURES]
    assemblers += [(OLDEST_PTXAS, architecture) for architecture in OLDEST_PTXAS_ARCHITECTURES]
    jobs = [(ptx, *assembler) for ptx in modules.values() for assembler in assemblers]
    with ThreadPoolExecutor() as pool:
        lines = [line for found in pool.map(lambda job: resources(*job), jobs) for line in found]
    if arguments.verbose:
        print("\n".join(lines))
    if len(lines) != len(jobs) * len(KERNELS):
        sys.exit(f"ptxas saw {len(lines)} kernels, wanted {len(jobs) * len(KERNELS)}")
    failures = [f"{line}\n    {', '.join(wrong)}" for line in lines if (wrong := complaints(line))]
    if failures:
        sys.exit("\n".join(failures))
    size = sum(path.stat().st_size for path in MODULES.iterdir())
    if size >= MOST_BYTES:
        sys.exit(f"the modules take {size} bytes, which is too much for the repository")
    print(f"{len(modules)} modules in {size} bytes, {len(lines)} kernels without spills, stacks or too many registers")


if __name__ == "__main__":
    main()
