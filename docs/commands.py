"""Checks commands of the book without running them: that what they name exists in this repository. Flags of its own
programs are looked up in their sources.

Known are make, cargo, pip, Python with scripts and modules, and a few programs that every system has. Lines of another
program are refused, so that no command stays unchecked.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

from pages import ROOT

# Of every system, or named on the page as what one has to have.
SYSTEM = {"apt-get", "cc", "cd", "dpkg-deb", "export", "git"}
PYTHON = re.compile(r"(.*/)?python3?")
ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=.*")


def wrong(text: str) -> list[str]:
    """What is named in the commands of a block and does not exist."""
    commands = (words for line in lines(text) for words in split(line))
    return [error for words in commands if (error := wrong_command(words)) is not None]


def lines(text: str) -> list[str]:
    """Lines, each with those that a backslash joins to it."""
    return text.replace("\\\n", " ").split("\n")


def split(line: str) -> list[list[str]]:
    """The commands of a line, without comments and without variables that are set before them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    commands: list[list[str]] = [[]]
    redirected = False
    for word in lexer:
        if set(word) <= set(";&|"):
            commands.append([])
        elif set(word) <= {">"}:
            redirected = True
        elif redirected:
            redirected = False
        elif commands[-1] or not ASSIGNMENT.fullmatch(word):
            commands[-1].append(word)
    return [words for words in commands if words]


def wrong_command(words: list[str]) -> str | None:
    """What a command names that does not exist."""
    program, *rest = words
    if program == "make":
        missing = [w for w in rest if not w.startswith("-") and "=" not in w and w not in make_targets()]
        return f"make has no target {missing[0]}" if missing else None
    if program == "cargo":
        return wrong_cargo(rest)
    if PYTHON.fullmatch(program):
        return wrong_python(rest)
    if program == "pip":
        return wrong_pip(rest)
    binary = program.removeprefix("target/release/").removeprefix("target/debug/")
    if binary in binaries():
        return wrong_flags(binary, rest)
    if "/" in program and (ROOT / program).is_file():
        return None
    return None if program in SYSTEM else f"{program} is no program that this check knows"


def wrong_cargo(words: list[str]) -> str | None:
    """A package, example, binary or feature that the workspace does not have."""
    words, given = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    members = packages()
    package = value_of(words, "-p") or value_of(words, "--package")
    if package is None:
        return None
    if package not in members:
        return f"there is no package {package}"
    folder, manifest = members[package]
    example, binary = value_of(words, "--example"), value_of(words, "--bin")
    places = [f"examples/{example}.rs", f"examples/{example}/main.rs"]
    if example and not any((folder / place).is_file() for place in places):
        return f"{package} has no example {example}"
    if binary and binary not in binaries():
        return f"{package} has no binary {binary}"
    features = (value_of(words, "--features") or "").replace(",", " ").split()
    missing = [feature for feature in features if feature not in manifest.get("features", {})]
    if missing:
        return f"{package} has no feature {missing[0]}"
    return wrong_flags(package, given) if package in binaries() and given else None


def wrong_flags(binary: str, words: list[str]) -> str | None:
    """A flag that a program of the workspace does not have."""
    given = [word.removeprefix("--").split("=")[0] for word in words if word.startswith("--")]
    missing = [flag for flag in given if flag not in flags(binary)]
    return f"{binary} has no flag --{missing[0]}" if missing else None


def wrong_python(words: list[str]) -> str | None:
    """A module or script that does not exist."""
    if not words:
        return None
    if words[0] == "-m":
        module = words[1]
        if module in ("pip", "venv", "pytest"):
            return wrong_pip(words[2:]) if module == "pip" else None
        main = f"{module.replace('.', '/')}/__main__.py"
        found = any((ROOT / folder / main).is_file() for folder in ("python", "pmx"))
        return None if found else f"there is no module {module} to run"
    return None if words[0].startswith("-") or (ROOT / words[0]).is_file() else f"there is no script {words[0]}"


def wrong_pip(words: list[str]) -> str | None:
    """A folder or an extra of this package that does not exist."""
    extras = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        named = re.fullmatch(r"(kvcache_ops|\./\S+?)(?:\[(.*)\])?", word)
        if named is None:
            continue
        if named[1].startswith("./") and not (ROOT / named[1]).is_dir():
            return f"there is no {named[1]} to install"
        missing = [extra for extra in (named[2] or "").split(",") if extra and extra not in extras]
        if missing:
            return f"kvcache_ops has no extra {missing[0]}"
    return None


def value_of(words: list[str], flag: str) -> str | None:
    """What follows a flag."""
    return words[words.index(flag) + 1] if flag in words else None


@cache
def make_targets() -> set[str]:
    """The targets that the Makefile and its parts have by name."""
    makefiles = [ROOT / "Makefile", *ROOT.glob("mk/*.mk")]
    lines = [line for makefile in makefiles for line in makefile.read_text().split("\n")]
    rules = (line.split(":")[0] for line in lines if re.match(r"[^\s#:=]+(\s[^#:=]+)?:(?!=)", line))
    return {target for rule in rules for target in rule.split()} - {".PHONY"}


@cache
def flags(binary: str) -> set[str]:
    """The long flags of a program of the workspace, as its sources declare them to clap."""
    folder, _ = next(package for name, package in packages().items() if binary == name)
    found = {"help", "version"}
    for source in (folder / "src").rglob("*.rs"):
        for attributes, field in re.findall(r"#\[arg\((.*?)\)\]\s*(?:pub )?(\w+):", source.read_text(), re.DOTALL):
            named = re.search(r'\blong = "([^"]+)"', attributes)
            if named or re.search(r"\blong\b", attributes):
                found.add(named[1] if named else field.replace("_", "-"))
    return found


@cache
def packages() -> dict[str, tuple[Path, dict]]:
    """The folder and the manifest of each package of the workspace, by its name."""
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    folders = [ROOT / member for member in workspace["members"]]
    manifests = [(folder, tomllib.loads((folder / "Cargo.toml").read_text())) for folder in folders]
    return {manifest["package"]["name"]: (folder, manifest) for folder, manifest in manifests}


@cache
def binaries() -> set[str]:
    """The names of the workspace's programs."""
    found = set()
    for name, (folder, manifest) in packages().items():
        if (folder / "src/main.rs").is_file() and "bin" not in manifest:
            found.add(name)
        found.update(binary["name"] for binary in manifest.get("bin", []))
    return found
