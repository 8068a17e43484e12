"""Compiles the CUDA kernels to PTX, ahead of time: `ptx/<types>.ptx.z`, one module for each combination of types, and
`ptx/modules.rs`, the list of them that Rust embeds.

    python kernels/src/cuda/generate.py FOLDER...            writes the modules anew
    python kernels/src/cuda/generate.py FOLDER... --check    fails if they differ from what the sources give, or if
                                                             ptxas finds that a kernel spills registers or needs a stack

A folder has a `modules.yaml`, which says what to compile, and its sources in `kernel/`. Needs the packages in
requirements.txt beside this file, no GPU and no driver. The same sources and packages give the same text. The modules
are PTX for the oldest GPU that the compiler knows; a driver compiles them for its own. They are written in the
compiler's version of PTX but use nothing that an older one does not have, and so say that they are of the older: a
driver refuses whatever is newer than itself. The assembler of that older CUDA checks them, too.
"""

import argparse
import ctypes
import importlib.util
import itertools
import re
import subprocess
import sys
import tempfile
import textwrap
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

HERE = Path(__file__).parent
SCHEMA = HERE.parents[2] / "schema/key_value_cache.yaml"

# Short names of types, of which the names of modules consist.
ELEMENTS = HERE.parents[2] / "schema/src/element.rs"
SHORT_NAMES = dict(re.findall(r'row\("(\w+)", "(\w+)"', ELEMENTS.read_text()))

OLDEST = "75"
# The version of PTX that the modules need. It came with CUDA 12.4, the oldest driver's (context.rs has it).
PTX_VERSION = "8.4"
# The assemblers of CUDA 13.0 and of 12.4.
PTXAS, OLDEST_PTXAS = "cu13/bin/ptxas", "cuda_nvcc/bin/ptxas"
# The architectures that ptxas checks: each generation of GPUs, from the oldest.
ARCHITECTURES = ["75", "80", "90", "100", "120"]
OLDEST_PTXAS_ARCHITECTURES = ["75", "80", "90"]
# The most that one folder's modules may have.
MOST_BYTES = 3_000_000


def wheel(file: str) -> Path:
    """A file of the installed NVIDIA wheels."""
    for folder in importlib.util.find_spec("nvidia").submodule_search_locations:
        for path in sorted(Path(folder).rglob(file)):
            return path
    sys.exit(f"{file} is in no nvidia package: install {HERE / 'requirements.txt'}")


class Folder:
    """Kernels: their sources, and the modules made of them."""

    def __init__(self, path: Path) -> None:
        modules = yaml.safe_load((path / "modules.yaml").read_text())
        self.path = path
        self.source = path / "kernel" / modules["source"]
        folders = [path / "kernel", *(path / folder for folder in modules["headers"])]
        self.headers = sorted((header for folder in folders for header in folder.glob("*.cuh")), key=lambda at: at.name)
        self.kernels = modules["kernels"]
        self.ptx = path / "ptx"
        # The folder's own modules or, where it names none, one for each row of the table of types, named by its T1, T2
        # and T3; ptx.rs embeds them.
        schema = yaml.safe_load(SCHEMA.read_text())
        self.types = modules.get("modules") or [
            "_".join(SHORT_NAMES[row[name]] for name in ("T1", "T2", "T3") if name in row)
            for row in schema["combinations"] + schema["extensions"]
            if row["T1"] not in modules.get("without", [])
        ]

    def embedded(self, name: str) -> str | None:
        """The text of a file in the tree."""
        path = self.ptx / name
        return packed(name, path.read_bytes(), zlib.decompress).decode() if path.exists() else None


def packed(name: str, data: bytes, how: Callable[[bytes], bytes]) -> bytes:
    """The bytes of a file, packed or unpacked where its name says that it is packed."""
    return how(data) if name.endswith(".z") else data


def listed(modules: dict[str, str]) -> str:
    """What Rust embeds: the kernels that each module has, in the order of the source, and the modules."""
    entry = r"^\.visible \.entry kvcache_(\w+)_{}\($"
    (kernels,) = {tuple(re.findall(entry.format(types), ptx, re.MULTILINE)) for types, ptx in modules.items()}
    lines = [textwrap.fill(text, 116) for text in (f"[{' '.join(kernels)}]", " ".join(modules))]
    return "// Written by generate.py.\nmodules! {\n" + textwrap.indent("\n".join(lines), "    ") + "\n}\n"


class Nvrtc:
    """NVIDIA's run-time compiler."""

    def __init__(self) -> None:
        # Loaded first, since the compiler does not search the wheel's folder for it.
        ctypes.CDLL(str(wheel("libnvrtc-builtins.so.*")), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(wheel("libnvrtc.so.*")))

    def _call(self, name: str, *arguments) -> int:
        return getattr(self.library, name)(*arguments)

    def _text(self, program, what: str) -> str:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        # `value` ends before the terminating NUL, which ptxas does not accept.
        return text.value.decode()

    def ptx(self, folder: Folder, types: str) -> str:
        """The module for a combination of types."""
        t1, t2, t3 = [*(part.upper() for part in types.split("_")), "None", "None"][:3]
        headers = folder.headers
        texts = (ctypes.c_char_p * len(headers))(*(header.read_bytes() for header in headers))
        names = (ctypes.c_char_p * len(headers))(*(header.name.encode() for header in headers))
        options = [
            f"--gpu-architecture=compute_{OLDEST}",
            "--std=c++17",
            # The kernels name each operation's rounding, so that no result depends on these.
            "--fmad=false",
            "--prec-div=true",
            "--ftz=false",
            f"-DTYPES={types}",
            f"-DVALUES={t1}",
            f"-DCELLS={t2}",
            f"-DSCALES={t3}",
        ]
        program = ctypes.c_void_p()
        source, name = folder.source.read_bytes(), folder.source.name.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source, name, len(headers), texts, names)
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = self._call("nvrtcCompileProgram", program, len(options), encoded)
        log = self._text(program, "ProgramLog").strip()
        if failed or log:
            sys.exit(f"{types}: {log or failed}")
        ptx = self._text(program, "PTX")
        self._call("nvrtcDestroyProgram", ctypes.byref(program))
        ptx, found = re.subn(
            r"^\.version \d+\.\d+$", f".version {PTX_VERSION}", ptx.rstrip() + "\n", flags=re.MULTILINE
        )
        if found != 1:
            sys.exit(f"{types}: {found} lines tell the version of PTX")
        return ptx


def resources(ptx: str, ptxas: str, architecture: str) -> list[str]:
    """A line for each kernel of a module: its resources on an architecture, as ptxas reports them."""
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "ptx")
        module.write_text(ptx)
        command = [wheel(ptxas), f"-arch=sm_{architecture}", "-v", module, "-o", f"{folder}/cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{ptxas}: {done.stderr}")
    parts = re.split(r"Compiling entry function '(\w+)'", done.stderr)[1:]
    return [
        f"{ptxas} sm_{architecture} {name}: {' '.join(text.split())}" for name, text in zip(parts[::2], parts[1::2])
    ]


def complaints(line: str, kernels: dict[str, int]) -> list[str]:
    """The resources of a kernel that are beyond the limits."""
    taken = {}
    for what in ["stack frame", "spill stores", "spill loads"]:
        found = re.search(rf"(\d+) bytes {what}", line)
        taken[what] = int(found[1]) if found else None
    registers = re.search(r"Used (\d+) registers", line)
    most_registers = next(most for name, most in kernels.items() if f" kvcache_{name}_" in line)
    wrong = [f"{what}: {count}" for what, count in taken.items() if count != 0]
    if registers is None or int(registers[1]) > most_registers:
        wrong.append(f"registers: {registers and registers[1]}")
    return wrong


def make(folder: Folder, nvrtc: Nvrtc, check: bool, sample: bool, verbose: bool) -> None:
    """Writes the modules of a folder, or checks them; of a sample, each module on one architecture."""
    modules = {types: nvrtc.ptx(folder, types) for types in folder.types}
    files = {f"{types}.ptx.z": ptx for types, ptx in modules.items()} | {"modules.rs": listed(modules)}
    if not check:
        folder.ptx.mkdir(exist_ok=True)
        for stale in {path.name for path in folder.ptx.iterdir()} - files.keys():
            (folder.ptx / stale).unlink()
        for name, text in files.items():
            # Compressed again only if the text differs: versions of zlib give different bytes.
            if folder.embedded(name) != text:
                (folder.ptx / name).write_bytes(packed(name, text.encode(), lambda data: zlib.compress(data, 9)))
    failures = [f"{name} is not what the sources give" for name, text in files.items() if folder.embedded(name) != text]
    failures += [f"{path.name} is no module" for path in folder.ptx.iterdir() if path.name not in files]
    if failures:
        sys.exit("\n".join([str(folder.path), *failures, "run make ptx"]))

    assemblers = [(PTXAS, architecture) for architecture in ARCHITECTURES]
    assemblers += [(OLDEST_PTXAS, architecture) for architecture in OLDEST_PTXAS_ARCHITECTURES]
    jobs = [(ptx, *assembler) for ptx in modules.values() for assembler in assemblers]
    if sample:
        jobs = [(ptx, *assembler) for ptx, assembler in zip(modules.values(), itertools.cycle(assemblers))]
    with ThreadPoolExecutor() as pool:
        lines = [line for found in pool.map(lambda job: resources(*job), jobs) for line in found]
    if verbose:
        print("\n".join(lines))
    if len(lines) != (expected := sum(ptx.count(".visible .entry ") for ptx, _, _ in jobs)):
        sys.exit(f"ptxas saw {len(lines)} kernels, expected {expected}")
    failures = [f"{line}\n    {', '.join(wrong)}" for line in lines if (wrong := complaints(line, folder.kernels))]
    if failures:
        sys.exit("\n".join(failures))
    size = sum(path.stat().st_size for path in folder.ptx.iterdir())
    if size >= MOST_BYTES:
        sys.exit(f"the modules take {size} bytes, which is too much for the repository")
    what = f"{len(modules)} modules in {size} bytes, {len(lines)} kernels"
    print(f"{folder.path}: {what} without spills, stacks or too many registers")


def main() -> None:
    """Writes the modules, or checks them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="+", type=Path, help="a folder with a modules.yaml")
    parser.add_argument("--check", action="store_true", help="compare instead of writing, and ask ptxas")
    parser.add_argument("--sample", action="store_true", help="ask ptxas for one architecture for each module")
    parser.add_argument("--verbose", action="store_true", help="print what each kernel takes")
    arguments = parser.parse_args()
    nvrtc = Nvrtc()
    for folder in arguments.folder:
        make(Folder(folder), nvrtc, arguments.check, arguments.sample, arguments.verbose)


if __name__ == "__main__":
    main()
