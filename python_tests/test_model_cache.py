"""What programs keep on the disk: whole files, built models by the content of their source, and nothing stale."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from kvcache_ops import KvCacheError, _atomic_file, _model_cache, models
from kvcache_ops._atomic_file import written
from kvcache_ops.cli._command import main
from kvcache_ops.models import _sources

from tiny_models import random_tensors, write_gguf

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small file."""
    return write_gguf(tmp_path / "tiny.gguf")


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk what was there stays, and nothing beside it; modes and links stay, too; pipes are written."""
    path, link = tmp_path / "kept", tmp_path / "link"
    with written(path) as file:
        file.write(b"first")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_atomic_file._umask()
    path.chmod(0o640)
    link.symlink_to("kept")
    with written(link) as file:
        file.write(b"second")
    assert link.is_symlink() and path.read_bytes() == b"second" and path.stat().st_mode & 0o777 == 0o640

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"), written(path) as file:
            file.write(b"third")
    with pytest.raises(KeyboardInterrupt), written(path) as file:
        file.write(b"fourth")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"second" and sorted(tmp_path.iterdir()) == [path, link]
    with written("/dev/null") as file:
        file.write(b"fifth")


def test_a_source_by_its_content(source: Path, home: Path) -> None:
    """Another model of the same size and time is built; a touch builds nothing; what it replaces goes."""
    first, stat = models.open_model(source), source.stat()
    os.utime(source, ns=(0, 0))
    again = models.open_model(source)
    assert (again.path, again.path.stat().st_mtime_ns) == (first.path, first.path.stat().st_mtime_ns)
    tensors = random_tensors()
    tensors["output_norm.weight"][3] += 1
    write_gguf(source, tensors=tensors)
    assert source.stat().st_size == stat.st_size
    os.utime(source, ns=(0, 0))
    other = models.open_model(source)
    assert other.fingerprint != first.fingerprint and not first.path.exists()
    assert models.open_model(source, cache="int4").path.exists() and other.path.exists()
    copy = source.with_name("copy.gguf")
    copy.write_bytes(source.read_bytes())
    assert models.open_model(copy).path.exists()
    assert len(list(home.iterdir())) == 3 and not any(home.glob("*.part"))


def test_large_files_are_sampled(tmp_path: Path) -> None:
    """At 4096 places; what is smaller is read whole."""
    path, seen, size = tmp_path / "large", set(), (1 << 26) + 4096
    for place in (None, 0, 4095, 4000 * (size >> 12)):
        with path.open("wb") as file:
            file.truncate(size)
            if place is not None:
                file.seek(place)
                file.write(b"x")
        seen.add(_model_cache.digest(path))
    assert len(seen) == 4
    for at in range(3):
        path.write_bytes(bytes(at) + b"x" + bytes(3 - at))
        seen.add(_model_cache.digest(path))
    assert len(seen) == 7


def test_only_stale_parts_go(source: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parts of this version and of earlier ones go; what another process builds stays; the doctor names both."""
    home.mkdir(parents=True)
    (home / "old-0123456789abcdef.x.part").mkdir()
    (home / "old-0123456789abcdef").mkdir()
    code = "import sys, time; from pathlib import Path; from kvcache_ops import _model_cache\n"
    code += (
        "with _model_cache.part_in(Path(sys.argv[1]), sys.argv[2]) as part: print(part, flush=True); time.sleep(600)"
    )
    builds = [
        subprocess.Popen([sys.executable, "-c", code, home, f"{name}."], stdout=subprocess.PIPE, text=True)
        for name in ("killed", "goes-on")
    ]
    try:
        killed, goes_on = (Path(build.stdout.readline().strip()) for build in builds if build.stdout)
        (killed / "model.onnx").write_bytes(bytes(2_000_000))
        builds[0].kill()
        builds[0].wait()
        assert main(["doctor"]) == 0
        said = [
            line.partition(":")[2].strip() for line in capsys.readouterr().out.splitlines() if "built models" in line
        ]
        assert f"2.0 MB, {killed.name}, left by a build that was killed" in said
        assert f"0.0 MB, {goes_on.name}, being built" in said
        assert "0.0 MB, old-0123456789abcdef, of an earlier version" in said
        model = models.open_model(source)
        assert sorted(home.iterdir()) == sorted([goes_on, home / "old-0123456789abcdef", model.path.parent])
        assert main(["doctor"]) == 0
        assert f"{model.path.parent.name}, of {source}" in capsys.readouterr().out
    finally:
        [build.kill() for build in builds]
        [build.wait() for build in builds]


def test_what_another_process_has_just_built_stays(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that appears while it is being built is used; a damaged one is built again."""
    model, load, looked = models.open_model(source), _sources.load, list[Path]()

    def late(path: Path) -> models.Model:
        looked.append(path)
        if len(looked) == 1:
            raise KvCacheError("not there yet", "model_missing")
        return load(path)

    before = model.path.stat()
    with monkeypatch.context() as patch:
        patch.setattr(_sources, "load", late)
        assert models.open_model(source).path == model.path
    assert len(looked) == 2 and model.path.stat().st_ino == before.st_ino
    model.path.write_bytes(b"")
    assert models.open_model(source).path.stat().st_size == before.st_size


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_build_that_is_ended(sent: signal.Signals, source: Path, tmp_path: Path) -> None:
    """SIGTERM removes what was written; after SIGKILL the next build there does, and leaves what is not ours."""
    # Tests may run under nohup.
    code = "import signal, sys, time; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    code += "from kvcache_ops.cli._command import main; from kvcache_ops.models import _build\n"
    code += "_build.Decoder.write = lambda self: time.sleep(600)\nsys.exit(main(['build', *sys.argv[1:]]))"
    out = tmp_path / "out"
    (out / "download.part").mkdir(parents=True)
    build = subprocess.Popen([sys.executable, "-c", code, source, out], stderr=subprocess.PIPE)
    while not any(out.glob(".*.part/model.onnx.data")):
        assert build.poll() is None, build.stderr and build.stderr.read()
        time.sleep(0.01)
    build.send_signal(sent)
    status = build.wait(60)
    assert status == (-sent if sent == signal.SIGKILL else 128 + sent)
    assert bool(list(out.glob(".*.part"))) is (sent == signal.SIGKILL)
    models.build(source, out)
    names = {"download.part", "model.onnx", "model.onnx.data", "tokenizer.json"}
    assert {path.name for path in out.iterdir()} == names
    assert np.isfinite(models.load(out).config.norm_eps)
