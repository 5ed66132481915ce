"""Having texts of workflows loaded, checked and edited by the loading process, whatever they cost."""

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
"""Texts that one process has loaded at the same time; others wait."""
ANSWER_GRACE: Final = 5.0
"""Seconds longer than a child may take, in which it or its end is heard of."""
LIMITS: Final = {"cpu_seconds": LOADING_CPU_SECONDS, "seconds": LOADING_SECONDS, "memory": LOADING_MEMORY}
_ROOT: Final = Path(__file__).parents[3]
_COMMAND: Final = (sys.executable, "-m", "sessions_app.workflows.loader.process")


class LoadingUnavailable(Exception):
    """The text could not be loaded now, which says nothing of it: the machine is too busy, or starts no process."""


class _TooExpensive(Exception):
    """Loading has used up its processor time or its memory."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What an editor shows of a text. ``svg`` is empty where there is no workflow, or too large a one."""

    is_valid: bool
    problems: tuple[Diagnostic, ...]
    svg: str
    nodes: tuple[str, ...]


def load_isolated(text: str | bytes, name: str = "workflow", library: FileProvider | None = None) -> LoadResult:
    """Load a text as ``loading.load`` does, within the limits of time and memory. Raises LoadingUnavailable.

    A text that takes more than they allow has the problem ``too_expensive``.
    """
    try:
        answer = _request("loaded", {"text": decode_text(text, name), "name": name}, library)
    except InvalidWorkflow as error:
        return LoadResult(None, error.problems)
    except _TooExpensive:
        return LoadResult(None, _too_expensive(name))
    document = answer["workflow"]
    return LoadResult(graph_json.graph_from_json(document) if document else None, _diagnostics_from_answer(answer))


def load_file_isolated(path: Path) -> LoadResult:
    """Load a file; what it names lies in the project around it. Raises LoadingUnavailable."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        return LoadResult(
            None, invalid_workflow(str(path), 0, "unreadable", f"it cannot be read: {error.strerror}", "").problems
        )
    return load_isolated(raw, str(path), DirectoryFiles(project_root_of(path)))


def check_isolated(text: str, name: str = "workflow", library: FileProvider | None = None) -> CheckResult:
    """Look at a text as an editor does. Raises LoadingUnavailable."""
    try:
        answer = _request("checked", {"text": decode_text(text, name), "name": name}, library)
    except InvalidWorkflow as error:
        return CheckResult(False, error.problems, "", ())
    except _TooExpensive:
        return CheckResult(False, _too_expensive(name), "", ())
    return CheckResult(answer["valid"], _diagnostics_from_answer(answer), answer["svg"], tuple(answer["nodes"]))


def node_data_isolated(text: str, node: str) -> dict[str, Any]:
    """As ``editing.node_data``. Raises NotEditable and LoadingUnavailable."""
    data: dict[str, Any] = _run_edit("node", text, node=node)["data"]
    return data


def apply_changes_isolated(
    text: str, node: str, settings: Mapping[str, Any], *, session_kept: bool | None = None
) -> str:
    """As ``editing.with_changes``. Raises NotEditable and LoadingUnavailable."""
    changed = _run_edit("edited", text, node=node, settings=dict(settings), session_kept=session_kept)
    return str(changed["text"])


def _run_edit(operation: str, text: str, **arguments: Any) -> dict[str, Any]:
    try:
        answer = _request(operation, {"text": text, **arguments}, None)
    except _TooExpensive as error:
        raise EditNotPossible("The text takes too long to read.") from error
    if "not_editable" in answer:
        raise EditNotPossible(answer["not_editable"])
    return answer


def _diagnostics_from_answer(answer: Mapping[str, Any]) -> tuple[Diagnostic, ...]:
    return tuple(Diagnostic(**one | {"severity": Severity(one["severity"])}) for one in answer["problems"])


def _too_expensive(name: str) -> tuple[Diagnostic, ...]:
    message = f"it takes more than {LOADING_CPU_SECONDS} s or too much memory to load"
    return invalid_workflow(name, 0, "too_expensive", message, "Make it smaller.").problems


class LoadingProcess:
    """The loading process of this process: begun when first needed, and anew when it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_CONCURRENT_LOADS)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def connect(self) -> socket.socket:
        """A connection to a child of its own. Raises OSError where no process can be begun."""
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                try:
                    socket.send_fds(self._begun(), [b"c"], [theirs.fileno()])
                except (BrokenPipeError, ConnectionResetError):
                    self._end()  # it was killed; the next one serves just as well
                    socket.send_fds(self._begun(), [b"c"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    @contextlib.contextmanager
    def place(self) -> Any:
        """One of the places for texts that are loaded at the same time. Raises LoadingUnavailable."""
        if not self._places.acquire(timeout=LOADING_SECONDS):
            raise LoadingUnavailable("too many workflows are being loaded")
        try:
            yield
        finally:
            self._places.release()

    def _begun(self) -> socket.socket:
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
        """End it. Children go on until they have answered, or their time is over."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.wait()
        self._control = self._process = None

    def forget(self) -> None:
        """In a forked process: the loading process is that of the other one, and its threads may hold the locks."""
        self._lock, self._places = threading.Lock(), threading.BoundedSemaphore(MAX_CONCURRENT_LOADS)
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # it is no child of this process, which so does not wait for it
        self._control = self._process = None

    def close(self) -> None:
        """End it; it begins again when it is needed."""
        with self._lock:
            self._end()


_process = LoadingProcess()
atexit.register(_process.close)
os.register_at_fork(after_in_child=_process.forget)


def _request(operation: str, arguments: Mapping[str, Any], library: FileProvider | None) -> dict[str, Any]:
    try:
        with _process.place(), _process.connect() as connection:
            connection.settimeout(LOADING_SECONDS + ANSWER_GRACE)
            request = {"operation": operation, "arguments": dict(arguments), "limits": LIMITS}
            send_message(connection, request)
            while "read" in (answer := receive_message(connection)):
                send_message(connection, _read_requested_file(library or NoFiles(), str(answer["read"])))
    except (OSError, ProtocolError, ValueError) as error:
        raise LoadingUnavailable("the process that loads workflows does not answer") from error
    if answer.get("killed") == "time":
        raise LoadingUnavailable("the machine was too busy to load the workflow in time")
    if "killed" in answer:
        raise _TooExpensive
    if "broken" in answer:
        raise RuntimeError(f"a workflow could not be loaded: {answer['broken']}")
    return answer


def _read_requested_file(library: FileProvider, path: str) -> dict[str, str]:
    try:
        return {"text": library.read(path)}
    except FileUnavailable as error:
        return {"missing": str(error)}
