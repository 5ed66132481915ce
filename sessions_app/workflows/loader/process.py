"""The loading process: texts of workflows are read, checked, drawn and edited here, away from everything else.

A program of its own (``python -m sessions_app.workflows.loader.process``), as reading costs what whoever wrote a
text wants it to. It has its modules imported and does nothing but fork: each connection that it is handed over its
standard input is served by a child, which takes one request, gives up all rights that it does not need, and is killed
by the system when its time is over. So no text can slow down another, and nothing of one is left when the next comes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import selectors
import signal
import socket
import struct
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from sessions_app.workflows.language.diagnostics import Diagnostic, Severity
from sessions_app.workflows.language.files import FileUnavailable
from sessions_app.workflows.language.limits import MAX_DRAWING
from sessions_app.workflows.loader import editing, graph_json
from sessions_app.workflows.loader.drawing import draw_inline_svg
from sessions_app.workflows.loader.loading import LoadResult, load_workflow

MAX_MESSAGE: Final = 32 << 20
"""Bytes."""
_LENGTH: Final = struct.Struct("!Q")


class ProtocolError(Exception):
    """The other side has closed the connection in the middle of a message, or sends too much."""


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message. Raises OSError, and MessageError for one that is too long, of which nothing is sent."""
    raw = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(raw) > MAX_MESSAGE:
        raise ProtocolError
    connection.sendall(_LENGTH.pack(len(raw)) + raw)


def receive_message(connection: socket.socket) -> dict[str, Any]:
    """Wait for a message. Raises OSError, also for a timeout of the connection, and MessageError."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    if length > MAX_MESSAGE:
        raise ProtocolError
    message: dict[str, Any] = json.loads(_receive_exactly(connection, length).decode("utf-8", "surrogatepass"))
    return message


def _receive_exactly(connection: socket.socket, length: int) -> bytearray:
    found = bytearray()
    while len(found) < length:
        part = connection.recv(min(length - len(found), 1 << 20))
        if not part:
            raise ProtocolError
        found += part
    return found


class _RemoteFiles:
    """A library whose files the other side of the connection has."""

    def __init__(self, connection: socket.socket):
        self._connection = connection

    def read(self, path: str) -> str:
        """The text of a file; raises NotInLibrary."""
        send_message(self._connection, {"read": path})
        answer = receive_message(self._connection)
        if "missing" in answer:
            raise FileUnavailable(answer["missing"])
        return str(answer["text"])


def loaded(library: _RemoteFiles, text: str, name: str) -> dict[str, Any]:
    """The workflow of a text, if there is one, and its problems."""
    found = load_workflow(text.encode("utf-8", "surrogatepass"), name, library)
    workflow = graph_json.graph_to_json(found.workflow) if found.workflow else None
    return {"workflow": workflow, "problems": [asdict(one) for one in found.problems]}


def checked(library: _RemoteFiles, text: str, name: str) -> dict[str, Any]:
    """What an editor shows: the problems, the drawing, and the ids of the nodes."""
    found = load_workflow(text.encode("utf-8", "surrogatepass"), name, library)
    svg, problems = _draw_graph(found, name)
    return {
        "valid": found.workflow is not None,
        "problems": [asdict(one) for one in problems],
        "svg": svg,
        "nodes": list(editing.find_node_paths(text)),
    }


def _draw_graph(found: LoadResult, name: str) -> tuple[str, tuple[Diagnostic, ...]]:
    if found.workflow is None:
        return "", found.problems
    svg = draw_inline_svg(found.workflow, {})
    if len(svg) <= MAX_DRAWING:
        return svg, found.problems
    message = "the drawing is too large to be shown"
    more = Diagnostic(severity=Severity.WARNING, code="too_large", message=message, fix="Use components.", file=name)
    return "", (*found.problems, more)


def node(library: _RemoteFiles, text: str, node: str) -> dict[str, Any]:
    """What a node of a text says."""
    return {"data": editing.node_data(text, node)}


def edited(
    library: _RemoteFiles, text: str, node: str, settings: Mapping[str, Any], session_kept: bool | None
) -> dict[str, Any]:
    """The text with other settings of a node."""
    return {"text": editing.apply_changes(text, node, settings, session_kept=session_kept)}


OPERATIONS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    one.__name__: one for one in (loaded, checked, node, edited)
}


def limit_process(cpu_seconds: int, seconds: float, memory: int) -> None:
    """Give up what is not needed, and be killed by the system when the time is over."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        resource.setrlimit(kind, (0, 0))
    for number in (signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def serve_connection(connection: socket.socket) -> None:
    """Carry out the one request of a connection: ``{"operation", "arguments", "limits"}``."""
    request = receive_message(connection)
    limit_process(**request["limits"])
    try:
        answer = OPERATIONS[request["operation"]](_RemoteFiles(connection), **request["arguments"])
    except editing.EditNotPossible as error:
        answer = {"not_editable": str(error)}
    except (MemoryError, RecursionError):
        answer = {"killed": "memory"}
    except Exception:  # noqa: BLE001  (told to whoever asked, who logs it)
        answer = {"broken": traceback.format_exc()[-4000:]}
    try:
        send_message(connection, answer)
    except ProtocolError:
        send_message(connection, {"killed": "memory"})


class LoadingServer:
    """Forks a child for each connection, and says on it how the child ended where that could not."""

    def __init__(self, control: socket.socket):
        self._control = control
        self._children: dict[int, socket.socket] = {}
        self._wakeup, self._ended = socket.socketpair()
        self._wakeup.setblocking(False)
        self._ended.setblocking(False)

    def serve(self) -> None:
        """Until whoever started this process has gone."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._ended.fileno())
        with selectors.DefaultSelector() as ready:
            ready.register(self._control, selectors.EVENT_READ)
            ready.register(self._wakeup, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj is self._wakeup:
                        self._wakeup.recv(4096)
                        self._reap()
                    elif not self._accept():
                        return

    def _accept(self) -> bool:
        """Take a connection over and serve it in a child; False once there will be no more."""
        said, given, _, _ = socket.recv_fds(self._control, 1, 1)
        if not said:
            return False
        connection = socket.socket(fileno=given[0])
        child = os.fork()
        if child == 0:
            self._be_child(connection)
        self._children[child] = connection
        return True

    def _be_child(self, connection: socket.socket) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for other in (self._control, self._wakeup, self._ended, *self._children.values()):
                other.close()
            serve_connection(connection)
            code = 0
        except (OSError, ProtocolError):
            pass  # whoever asked has gone
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            connection = self._children.pop(child)
            if os.WIFSIGNALED(status):
                # Any other signal says nothing of the text: the machine was busy, or out of memory.
                word = "cpu" if os.WTERMSIG(status) == signal.SIGXCPU else "time"
                _send_quietly(connection, {"killed": word})
            connection.close()


def _send_quietly(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody waits any more
        send_message(connection, message)


_WARM_UP_WORKFLOW: Final = (
    "version: 3\nmetadata: {name: x}\nnodes: [{id: a, type: shell, data: {script: '{{ b.c }}'}}]\nedges: []",
    '{"version": 3, "nodes": [{"id": "a", "type": "shel"}], "edges": []}',
    '{"version": 3, "metadata": {"name": "x"}, "nodes": [{"id": "a", "type": "shel"}], "edges": []}',
    "{",
)


def _preload() -> None:
    """Have everything imported and built that children need, for they can open no file."""
    unicodedata.normalize("NFKC", "")  # Python’s own parser imports it for names beyond ASCII
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for text in _WARM_UP_WORKFLOW:
            checked(_RemoteFiles(ours), text, "")
            loaded(_RemoteFiles(ours), text, "")
    edited(_RemoteFiles(ours), _WARM_UP_WORKFLOW[0], "a", {"label": "A"}, None)


def main() -> None:
    """Serve whoever holds the other end of the standard input."""
    warnings.simplefilter("ignore")  # Python warns of expressions that are none of its business
    _preload()
    gc.collect()
    gc.freeze()  # so that children do not copy what they only read
    LoadingServer(socket.socket(fileno=0)).serve()


if __name__ == "__main__":
    main()
