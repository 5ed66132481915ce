"""The loading process, which reads, checks, draws and edits workflow texts in isolation.

The author of a text decides how expensive it is to read, so this is a separate program
(``python -m sessions_app.workflows.loader.process``). It imports its modules once, and then only forks: each connection
that it receives over its standard input is served by a child, which handles one request, gives up every right that it
does not need, and is killed by the system when its time is over. No text can slow down another or leave anything
behind. Messages are JSON, each after its length in eight bytes.
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
from sessions_app.workflows.loader import editing, graph_json
from sessions_app.workflows.loader.drawing import DrawingTooLarge, draw_inline_svg
from sessions_app.workflows.loader.loading import LoadResult, load_workflow

MAX_MESSAGE: Final = 32 << 20
"""Bytes of one message."""
_LENGTH: Final = struct.Struct("!Q")


class ProtocolError(Exception):
    """The other side closed the connection within a message, or a message is too long."""


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message. Raises OSError, and ProtocolError (having sent nothing) if it is too long."""
    raw = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(raw) > MAX_MESSAGE:
        raise ProtocolError
    connection.sendall(_LENGTH.pack(len(raw)) + raw)


def receive_message(connection: socket.socket) -> dict[str, Any]:
    """Wait for a message. Raises ProtocolError, and OSError, also for a timeout of the connection."""
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


class RemoteFiles:
    """Reads files through the other side of the connection, because a child can open none."""

    def __init__(self, connection: socket.socket):
        self._connection = connection

    def read(self, path: str) -> str:
        """Return the text of a file. Raises FileUnavailable."""
        send_message(self._connection, {"read": path})
        answer = receive_message(self._connection)
        if "missing" in answer:
            raise FileUnavailable(answer["missing"])
        return str(answer["text"])


def loaded(files: RemoteFiles, text: str, name: str) -> dict[str, Any]:
    """Return the workflow of a text, if it is valid, and its problems."""
    found = load_workflow(text.encode("utf-8", "surrogatepass"), name, files)
    workflow = graph_json.graph_to_json(found.workflow) if found.workflow else None
    return {"workflow": workflow, "problems": [asdict(diagnostic) for diagnostic in found.problems]}


def checked(files: RemoteFiles, text: str, name: str) -> dict[str, Any]:
    """Return what the editor shows: the problems, the drawing, and the ids of the nodes."""
    found = load_workflow(text.encode("utf-8", "surrogatepass"), name, files)
    svg, problems = _draw_graph(found, name)
    return {
        "valid": found.workflow is not None,
        "problems": [asdict(diagnostic) for diagnostic in problems],
        "svg": svg,
        "nodes": list(editing.find_node_paths(text)),
    }


def _draw_graph(found: LoadResult, name: str) -> tuple[str, tuple[Diagnostic, ...]]:
    if found.workflow is None:
        return "", found.problems
    try:
        return draw_inline_svg(found.workflow, {}), found.problems
    except DrawingTooLarge:
        pass
    message = "the workflow is too large to draw"
    more = Diagnostic(
        severity=Severity.WARNING, code="too_large", message=message, fix="Split it into smaller workflows.", file=name
    )
    return "", (*found.problems, more)


def node(files: RemoteFiles, text: str, node: str) -> dict[str, Any]:
    """Return the settings of a node."""
    return {"data": editing.node_data(text, node)}


def edited(
    files: RemoteFiles, text: str, node: str, settings: Mapping[str, Any], session_kept: bool | None
) -> dict[str, Any]:
    """Return the text with changed settings of a node."""
    return {"text": editing.apply_changes(text, node, settings, session_kept=session_kept)}


OPERATIONS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    operation.__name__: operation for operation in (loaded, checked, node, edited)
}


def limit_process(cpu_seconds: int, seconds: float, memory: int) -> None:
    """Give up every right that is not needed, and have the system kill this process when its time is over."""
    # The soft limit sends SIGXCPU, which tells the server the cause (see ``_reap``); the hard limit kills.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    # Descriptors that are open stay usable, such as the connection; no new one can be opened.
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        resource.setrlimit(kind, (0, 0))
    for number in (signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def serve_connection(connection: socket.socket) -> None:
    """Carry out the only request of a connection: ``{"operation", "arguments", "limits"}``."""
    request = receive_message(connection)
    limit_process(**request["limits"])
    try:
        answer = OPERATIONS[request["operation"]](RemoteFiles(connection), **request["arguments"])
    except editing.EditNotPossible as error:
        answer = {"not_editable": str(error)}
    except (MemoryError, RecursionError):
        answer = {"killed": "memory"}
    except Exception:  # noqa: BLE001  (reported to the other side, which logs it)
        answer = {"broken": traceback.format_exc()[-4000:]}
    try:
        send_message(connection, answer)
    except ProtocolError:
        send_message(connection, {"killed": "memory"})


class LoadingServer:
    """Forks a child for each connection, and reports the end of a child that was killed before it could answer."""

    def __init__(self, control: socket.socket):
        self._control = control
        self._children: dict[int, socket.socket] = {}
        self._wakeup, self._ended = socket.socketpair()
        self._wakeup.setblocking(False)
        self._ended.setblocking(False)

    def serve(self) -> None:
        """Serve until the process that started this one closes its end."""
        # Python writes a signal to the wake-up descriptor only if the signal has a handler.
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
        """Accept a connection and serve it in a child; return False if there will be no more."""
        data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if not data:
            return False
        connection = socket.socket(fileno=descriptors[0])
        child = os.fork()
        if child == 0:
            self._run_child(connection)
        self._children[child] = connection
        return True

    def _run_child(self, connection: socket.socket) -> None:
        code = 1
        try:
            # A child shares these descriptors with the server. Its signals must not wake the server, and it must not
            # keep other connections open: their clients would wait for this child to end.
            signal.set_wakeup_fd(-1)
            for other in (self._control, self._wakeup, self._ended, *self._children.values()):
                other.close()
            serve_connection(connection)
            code = 0
        except (OSError, ProtocolError):
            pass  # the other side has closed the connection
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            connection = self._children.pop(child)
            if os.WIFSIGNALED(status):
                # Only SIGXCPU proves that the text is too expensive. Any other signal can come from a busy machine, or
                # from one that is out of memory.
                word = "cpu" if os.WTERMSIG(status) == signal.SIGXCPU else "time"
                with contextlib.suppress(OSError):  # the other side no longer waits
                    send_message(connection, {"killed": word})
            connection.close()


_WARM_UP_WORKFLOW: Final = (
    "version: 3\nmetadata: {name: x}\nnodes: [{id: a, type: shell, data: {script: '{{ b.c }}'}}]\nedges: []",
    '{"version": 3, "nodes": [{"id": "a", "type": "shel"}], "edges": []}',
    '{"version": 3, "metadata": {"name": "x"}, "nodes": [{"id": "a", "type": "shel"}], "edges": []}',
    "{",
)


def _preload() -> None:
    """Import and build everything that children need, because they cannot open files."""
    unicodedata.normalize("NFKC", "")  # Python’s parser imports this module for names that are not ASCII
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for text in _WARM_UP_WORKFLOW:
            checked(RemoteFiles(ours), text, "")
            loaded(RemoteFiles(ours), text, "")
    edited(RemoteFiles(ours), _WARM_UP_WORKFLOW[0], "a", {"label": "A"}, None)


def main() -> None:
    """Serve the process at the other end of the standard input."""
    warnings.simplefilter("ignore")  # warnings about the syntax of users’ expressions are noise here
    _preload()
    gc.collect()
    gc.freeze()  # so that the collector does not touch, and copy, memory that children share
    LoadingServer(socket.socket(fileno=0)).serve()


if __name__ == "__main__":
    main()
