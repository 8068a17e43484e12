"""A program in any language as an implementation: it is given a case's folder, and writes a file with the results.

A program is started for each case, or serves many; in a process group of its own, so that it ends with all that it has
started.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops.conformance._call import NotRun, Reply

CASE, OUTPUT = "{case}", "{output}"

DONE = "done"
"""What a program that serves answers when it has written a case's result."""

END = 1.0
"""How many seconds a program that serves has to end when there are no more cases."""

MOST_BYTES = 1 << 30
"""More than any case's results have."""


class Program:
    """A program that runs cases, by its command, which is split into words as a shell does.

    It is called for each case, with the paths in the places of `{case}` and `{output}`, or as COMMAND CASE OUTPUT
    without them. With `serve` it reads lines from its standard input, both paths with a tab between them, and answers
    each with the line `done`, or why it cannot run the case. There is a process for each case that is run at once; in
    place of one that crashes, or takes longer than `limit` seconds, another is started.

    Raises KvCacheError "program" if the command cannot be split, is empty, names a program that is missing, or has
    one of the placeholders alone, or any with `serve`.
    """

    def __init__(self, command: str, *, serve: bool = False, limit: float = 60) -> None:
        self.words, self.serve, self.limit = _split(command), serve, limit
        self.idle: list[_Process] = []
        self.running: set[_Process] = set()
        self.interrupted = False
        given = [name for name in (CASE, OUTPUT) if any(name in word for word in self.words)]
        if serve and given:
            why = "but a program that serves reads the paths from its standard input"
            raise KvCacheError(f"{command!r} has {given[0]}, {why}", "program")
        if len(given) == 1:
            missing = OUTPUT if given == [CASE] else CASE
            raise KvCacheError(f"{command!r} has no {missing}", "program")
        if not given:
            self.words += [CASE, OUTPUT]

    def __call__(self, case: _native.ConformanceCase) -> list[Reply]:
        """What became of the calls of a case; one reply if it has none."""
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
                folder, output = Path(home, "case"), Path(home, "result.safetensors")
                folder.mkdir()
                for name, data in zip(("case.yaml", "tensors.safetensors"), case.files()):
                    (folder / name).write_bytes(data)
                run = self._serve if self.serve else self._run
                run(str(folder), str(output))
                return case.read_results(_content(output))
        except (NotRun, OSError, ValueError) as error:
            return [("failed", None, str(error), [], None, None)]
        except BaseException:
            # The run is interrupted: programs that run on other threads' behalf would hold its end up.
            self.interrupted = True
            for process in list(self.running):
                process.kill()
            raise

    def close(self) -> None:
        """Lets the programs that serve end."""
        while self.idle:
            self.idle.pop().close()

    def _run(self, case: str, output: str) -> None:
        paths = {CASE: case, OUTPUT: output}
        process = _Process([re.sub(r"\{case\}|\{output\}", lambda name: paths[name[0]], word) for word in self.words])
        self._add(process)
        try:
            process.wait(self.limit)
        finally:
            self.running.discard(process)
            process.kill()

    def _serve(self, case: str, output: str) -> None:
        process = self._living() or _Process(self.words[:-2], serves=True)
        self._add(process)
        try:
            answer = process.ask(f"{case}\t{output}\n", self.limit)
        except BaseException:
            process.kill()
            raise
        finally:
            self.running.discard(process)
        self.idle.append(process)
        if answer != DONE:
            raise NotRun(f"the program answered {answer!r}, expected {DONE!r}")

    def _add(self, process: _Process) -> None:
        """Counts a process among those that run, which an interruption ends: so does one that came before."""
        self.running.add(process)
        if self.interrupted:
            process.kill()

    def _living(self) -> _Process | None:
        """An idle process. If it ended after its last case, no case is at fault."""
        while True:
            try:
                process = self.idle.pop()
            except IndexError:
                return None
            if process.popen.poll() is None:
                return process
            process.close()


class _Process:
    """A process in its own group. Its output goes to a file, which nobody has to read while it runs."""

    def __init__(self, words: list[str], serves: bool = False) -> None:
        self.log = tempfile.TemporaryFile()
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": self.log}
        if serves:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        try:
            self.popen = subprocess.Popen(words, **pipes, stderr=self.log, start_new_session=True)
        except OSError as error:
            raise NotRun(f"{words[0]} could not be started: {error}") from None
        self.answers: queue.Queue[str | None] = queue.Queue(1)
        if serves:
            assert self.popen.stdout is not None
            threading.Thread(target=self._read, args=(self.popen.stdout,), daemon=True).start()

    def _read(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            self.answers.put(line.decode(errors="replace").rstrip("\r\n"))
        self.answers.put(None)

    def ask(self, line: str, limit: float) -> str:
        """The answer to a line."""
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write(os.fsencode(line))
            self.popen.stdin.flush()
        except OSError:
            pass  # It has ended: nothing is answered.
        try:
            answer = self.answers.get(timeout=limit)
        except queue.Empty:
            raise NotRun(self._late(limit)) from None
        if answer is None:
            try:
                self.wait(END)
            except NotRun as error:
                late = self.popen.poll() is None
                raise NotRun("the program closed its standard output" if late else str(error)) from None
            raise NotRun(f"the program ended with exit status 0{self._said()}")
        return answer

    def wait(self, limit: float) -> None:
        """Waits for its end, which must come within a limit, and with success."""
        try:
            status = self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            raise NotRun(self._late(limit)) from None
        if status:
            ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            raise NotRun(f"the program ended with {ended}{self._said()}")

    def close(self) -> None:
        """Ends its input, with which it should end, or else ends it."""
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.close()
            self.popen.wait(END)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """Ends the process if it runs, and every process that it started."""
        if sys.platform == "win32":
            self.popen.kill()
        else:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def _late(self, limit: float) -> str:
        return f"the program was ended after {limit:g} seconds{self._said()}"

    def _said(self) -> str:
        """The end of its output, which says why it ended."""
        length = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, length - 2000))
        said = self.log.read(2000).decode(errors="replace").strip()
        return f": {said}" if said else ""


def _content(output: Path) -> bytes:
    """A program's output. The file may be something that does not end, like a pipe."""
    try:
        status = output.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise NotRun(f"the program's result is no regular file of at most {MOST_BYTES} bytes")
        return output.read_bytes()
    except FileNotFoundError as error:
        raise NotRun(f"the program wrote no result: {error.strerror}") from None
    except OSError as error:
        raise NotRun(f"the program's result cannot be read: {error}") from None


def _split(command: str) -> list[str]:
    """The words of a command whose program is there; the path of a file is a command that is not split."""
    if os.path.isfile(command):
        return [command]
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise KvCacheError(f"{command!r} cannot be split into words: {error}", "program") from None
    if not words:
        raise KvCacheError("the command is empty", "program")
    if shutil.which(words[0]) is None and not os.path.isfile(words[0]):
        raise KvCacheError(f"there is no program {words[0]!r}", "program")
    return words
