"""Load, check and edit workflow texts in the loading process, which limits what a text can cost."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sessions_app.workflows.language.diagnostics import Diagnostic, InvalidWorkflow, Severity, invalid_workflow
from sessions_app.workflows.language.files import (
    CachedFiles,
    DirectoryFiles,
    FileProvider,
    FileUnavailable,
    NoFiles,
    project_root_of,
)
from sessions_app.workflows.language.limits import LOADING_CPU_SECONDS, LOADING_MEMORY, LOADING_SECONDS
from sessions_app.workflows.language.reader import decode_text
from sessions_app.workflows.loader import graph_json
from sessions_app.workflows.loader.editing import EditNotPossible
from sessions_app.workflows.loader.loading import LoadResult
from sessions_app.workflows.loader.process import ProtocolError, receive_message, send_message

MAX_CONCURRENT_LOADS: Final = 4
"""Texts that this process has loaded at the same time; further requests wait."""
ANSWER_GRACE: Final = 5.0
"""Extra seconds to wait for the answer of a child, or for the report of its end."""
LIMITS: Final = {"cpu_seconds": LOADING_CPU_SECONDS, "seconds": LOADING_SECONDS, "memory": LOADING_MEMORY}
_ROOT: Final = Path(__file__).parents[3]
_COMMAND: Final = (sys.executable, "-m", "sessions_app.workflows.loader.process")


class LoadingUnavailable(Exception):
    """The text could not be loaded, but not because of the text: the machine is busy, or no process could start."""


class _TooExpensive(Exception):
    """Loading used up its processor time or memory."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What the editor shows for a text. ``svg`` is empty if the workflow is invalid, or too large to draw."""

    is_valid: bool
    problems: tuple[Diagnostic, ...]
    svg: str
    nodes: tuple[str, ...]


def load_isolated(text: str | bytes, name: str = "workflow", files: FileProvider | None = None) -> LoadResult:
    """Load a text as ``loading.load_workflow`` does, within limits of time and memory. Raises LoadingUnavailable.

    A text that exceeds the limits gets the problem ``too_expensive``.
    """
    answer, problems = _read_isolated("loaded", text, name, files)
    return LoadResult(graph_json.graph_from_json(answer["workflow"]) if answer.get("workflow") else None, problems)


@dataclass(frozen=True, slots=True)
class WorkflowInput:
    """A workflow file, the result of loading it, and the files that it names."""

    text: str
    loaded: LoadResult
    files: dict[str, str]


def load_file_isolated(path: Path) -> WorkflowInput:
    """Load a file. The files that it names are in its project. Raises LoadingUnavailable."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror}"
        problems = invalid_workflow(str(path), 0, "unreadable", reason, "").problems
        return WorkflowInput("", LoadResult(None, problems), {})
    files = CachedFiles(DirectoryFiles(project_root_of(path)))
    loaded = load_isolated(raw, str(path), files)
    return WorkflowInput(raw.decode("utf-8-sig", "replace"), loaded, files.files)


def check_isolated(text: str, files: FileProvider | None = None) -> CheckResult:
    """Check and draw a text for the editor. Raises LoadingUnavailable."""
    answer, problems = _read_isolated("checked", text, "workflow", files)
    return CheckResult(answer.get("valid", False), problems, answer.get("svg", ""), tuple(answer.get("nodes", ())))


def _read_isolated(
    operation: str, text: str | bytes, name: str, files: FileProvider | None
) -> tuple[dict[str, Any], tuple[Diagnostic, ...]]:
    """Return the answer of an operation with its problems; an empty answer if the text could not be read at all."""
    try:
        answer = _request(operation, {"text": decode_text(text, name), "name": name}, files)
    except InvalidWorkflow as error:
        return {}, error.problems
    except _TooExpensive:
        message = f"loading the workflow takes more than {LOADING_CPU_SECONDS} s of processor time, or too much memory"
        return {}, invalid_workflow(name, 0, "too_expensive", message, "Make the workflow smaller.").problems
    problems = (Diagnostic(**found | {"severity": Severity(found["severity"])}) for found in answer["problems"])
    return answer, tuple(problems)


def node_data_isolated(text: str, node: str) -> dict[str, Any]:
    """Run ``editing.node_data``. Raises EditNotPossible and LoadingUnavailable."""
    data: dict[str, Any] = _run_edit("node", text, node=node)["data"]
    return data


def apply_changes_isolated(
    text: str, node: str, settings: Mapping[str, Any], *, session_kept: bool | None = None
) -> str:
    """Run ``editing.apply_changes``. Raises EditNotPossible and LoadingUnavailable."""
    changed = _run_edit("edited", text, node=node, settings=dict(settings), session_kept=session_kept)
    return str(changed["text"])


def _run_edit(operation: str, text: str, **arguments: Any) -> dict[str, Any]:
    try:
        answer = _request(operation, {"text": text, **arguments}, None)
    except _TooExpensive as error:
        raise EditNotPossible("The text takes too long to read. Change the setting in the text itself.") from error
    if "not_editable" in answer:
        raise EditNotPossible(answer["not_editable"])
    return answer


class LoadingProcess:
    """The loading process that belongs to this process. It starts when first needed, and again if it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_CONCURRENT_LOADS)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def connect(self) -> socket.socket:
        """Return a connection to a new child of the loading process. Raises OSError if no process can be started."""
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                try:
                    socket.send_fds(self._control_socket(), [b"c"], [theirs.fileno()])
                except (BrokenPipeError, ConnectionResetError):
                    self._end()  # It was killed. It holds no state, so a new one can take over.
                    socket.send_fds(self._control_socket(), [b"c"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    @contextlib.contextmanager
    def slot(self) -> Any:
        """Hold one of the slots for concurrent loads. Raises LoadingUnavailable if none becomes free in time."""
        if not self._slots.acquire(timeout=LOADING_SECONDS):
            raise LoadingUnavailable("too many workflows are being loaded; try again")
        try:
            yield
        finally:
            self._slots.release()

    def _control_socket(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    _COMMAND,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd=_ROOT,
                    env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                    start_new_session=True,
                )
        return self._control

    def _end(self) -> None:
        """End the process. Its children continue until they have answered, or their time is over."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.wait()
        self._control = self._process = None

    def forget(self) -> None:
        """Forget the loading process after a fork: it belongs to the parent, whose threads may hold the locks."""
        self._lock, self._slots = threading.Lock(), threading.BoundedSemaphore(MAX_CONCURRENT_LOADS)
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # not a child of this process, so nothing may wait for it
        self._control = self._process = None

    def close(self) -> None:
        """End the process. It starts again when it is needed."""
        with self._lock:
            self._end()


_process = LoadingProcess()
atexit.register(_process.close)
os.register_at_fork(after_in_child=_process.forget)


def _request(operation: str, arguments: Mapping[str, Any], files: FileProvider | None) -> dict[str, Any]:
    try:
        with _process.slot(), _process.connect() as connection:
            connection.settimeout(LOADING_SECONDS + ANSWER_GRACE)
            request = {"operation": operation, "arguments": dict(arguments), "limits": LIMITS}
            send_message(connection, request)
            while "read" in (answer := receive_message(connection)):
                try:
                    given = {"text": (files or NoFiles()).read(str(answer["read"]))}
                except FileUnavailable as error:
                    given = {"missing": str(error)}
                send_message(connection, given)
    except (OSError, ProtocolError, ValueError) as error:
        raise LoadingUnavailable("the process that loads workflows does not answer; try again") from error
    if answer.get("killed") == "time":
        raise LoadingUnavailable("the machine was too busy to load the workflow in time; try again")
    if "killed" in answer:
        raise _TooExpensive
    if "broken" in answer:
        raise RuntimeError(f"a workflow could not be loaded: {answer['broken']}")
    return answer
