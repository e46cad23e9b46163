"""Running the program `tierfs`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sysconfig
import threading
from pathlib import Path
from typing import Any, Union

from ._types import PathResult, Reason

StrPath = Union[str, "os.PathLike[str]"]


class Error(Exception):
    """The program refused a request, failed, or did it in part.

    Attributes:
        exit_status: exit status of the program.
        result: the value that the function would have returned, of a request that was done in part: an `Import` with
            `failed`, for example. `None` if nothing was done.
    """

    def __init__(self, message: str, exit_status: int = 1, result: Any = None) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.result = result

    @property
    def results(self) -> list[PathResult]:
        """The result of each path, where the command has one."""
        return self.result if _is_of_paths(self.result) else []

    @property
    def reasons(self) -> list[Reason]:
        """The reasons of all refused paths."""
        return [reason for result in self.results for reason in result.get("reasons", [])]


class UsageError(Error):
    """The arguments were wrong, and nothing was done (exit status 2)."""


class CorruptError(Error):
    """Stored bytes are corrupt (exit status 3)."""


def program() -> str:
    """Returns the path of the program: `$TIERFS`, the one installed with this package, or the first in `PATH`."""
    given = os.environ.get("TIERFS")
    if given:
        return given
    for scripts in (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")):
        beside = Path(scripts) / "tierfs"
        if beside.is_file():
            return str(beside)
    found = shutil.which("tierfs")
    if found is None:
        raise Error("the program tierfs is not installed; TIERFS can name it")
    return found


def run(*arguments: StrPath) -> str:
    """Runs a command and returns its standard output; raises `Error` unless it exits 0."""
    exit_status, output, errors = _run(arguments)
    if exit_status != 0:
        raise _error(exit_status, output, errors)
    return output


def _run(arguments: tuple[StrPath, ...]) -> tuple[int, str, str]:
    """Runs a command and returns its exit status, standard output and standard error.

    A KeyboardInterrupt is passed on to the command, which cancels its job, says so and ends; then it is raised.
    """
    process, is_interrupted = _started([program(), *(os.fspath(argument) for argument in arguments)])
    with process:
        try:
            if is_interrupted:
                raise KeyboardInterrupt
            output, errors = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise
    return process.returncode, output, errors


def _started(command: list[str]) -> tuple[subprocess.Popen[str], bool]:
    """Starts a command. Returns whether SIGINT arrived before there was a process to pass it on to."""
    interrupts: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    defers = callable(handler) and threading.current_thread() is threading.main_thread()
    if defers:
        signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        # A session of its own: otherwise the terminal, too, would send the command SIGINT, and two end it at once.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            start_new_session=True,
        )
    finally:
        if defers:
            signal.signal(signal.SIGINT, handler)
    return process, bool(interrupts)


def run_json(*arguments: StrPath, answers: tuple[int, ...] = (0,)) -> Any:
    """Runs a command with `--json` and returns the value that it printed; raises `Error` if it fails.

    `answers` are the exit statuses with which the value is an answer, unless it is an error alone.
    """
    # Options come before `--`, so no path can be taken for one.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    exit_status, output, errors = _run((*arguments[:end], "--json", *arguments[end:]))
    value = _parsed(output)
    is_answer = value is not None and not _is_failure(value)
    if exit_status == 0 or (exit_status in answers and is_answer):
        return value
    raise _error(exit_status, output, errors)


def _error(exit_status: int, output: str, errors: str) -> Error:
    value = _parsed(output)
    failure = value.get("error") if isinstance(value, dict) else None
    results: list[PathResult] = value if _is_of_paths(value) else []
    reasons = [
        f"{result['path']}: {reason['text']}" + (f"; {reason['advice']}" if reason["advice"] else "")
        for result in results
        for reason in result.get("reasons", [])
    ]
    if isinstance(failure, dict) and "text" in failure:
        reasons.append(str(failure["text"]))
    # An error of usage ends with the usage and a hint at the help.
    lines = errors.strip().split("\n\n")[0].removeprefix("error: ").removeprefix("tierfs: ")
    message = "\n".join(reasons) or lines or f"tierfs ended with status {exit_status}"
    kind = {2: UsageError, 3: CorruptError}.get(exit_status, Error)
    return kind(message, exit_status, None if _is_failure(value) else value)


def _is_of_paths(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and "state" in one for one in value)


def _is_failure(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"error"}


def _parsed(output: str) -> Any:
    try:
        return json.loads(output)
    except ValueError:
        return None
