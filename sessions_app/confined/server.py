"""The fork server of a pool: ``python -m sessions_app.confined.server MODULE_OF_OPERATIONS``.

It imports the module once, and then only forks: each connection that it receives over its standard input is served by a
child, which handles one request, gives up every right that it does not need, and is killed by the system when its time
is over. No text can slow down another or leave anything behind.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from sessions_app.confined.limits import CPU_SIGNALS, ItemTooExpensive, Limits, limit_item, limit_process
from sessions_app.confined.link import ClientLink
from sessions_app.confined.messages import ProtocolError, receive_message, send_message

Operations = Mapping[str, Callable[..., dict[str, Any]]]


def serve_connection(connection: socket.socket, operations: Operations) -> None:
    """Carry out the only request of a connection.

    It is ``{"operation", "limits"}`` with either ``"arguments"``, whose answer is ``{"result"}``, or ``"batch"`` (a
    list of arguments) and ``"item_cpu_seconds"``, whose answers are an ``{"item", "result"}`` each and ``{"done"}``;
    ``{"short_of_time"}`` comes before an item for which less is left than its share of the time. Instead of
    ``"result"`` there may be ``"failed"``: ``"cpu"``, ``"memory"`` or ``"time"``; or ``"broken"``, a traceback.
    """
    request = receive_message(connection)
    limits = Limits(**request["limits"])
    limit_process(limits)
    operation = operations[request["operation"]]
    link = ClientLink(connection)
    if "batch" not in request:
        _send_answer(connection, _run(operation, link, request["arguments"]))
        return
    for number, arguments in enumerate(request["batch"]):
        remaining = limits.cpu_seconds - time.process_time()
        if remaining <= request["item_cpu_seconds"] / 10:
            break
        # An item that uses up only what the others have left of the time is tried again. The first one has all of it.
        has_share = not number or remaining >= request["item_cpu_seconds"]
        if not has_share:
            send_message(connection, {"short_of_time": number})
        answer = _run_item(operation, link, arguments, min(request["item_cpu_seconds"], remaining))
        if answer.get("failed") == "cpu" and not has_share:
            answer = {"failed": "time"}
        _send_answer(connection, {"item": number} | answer)
    send_message(connection, {"done": True})


def _run_item(
    operation: Callable[..., dict[str, Any]], link: ClientLink, arguments: Mapping[str, Any], cpu_seconds: float
) -> dict[str, Any]:
    try:
        with limit_item(cpu_seconds):
            return _run(operation, link, arguments)
    except ItemTooExpensive:
        return {"failed": "cpu"}


def _run(operation: Callable[..., dict[str, Any]], link: ClientLink, arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"result": operation(link, **arguments)}
    except (MemoryError, RecursionError):
        return {"failed": "memory"}
    except Exception:  # noqa: BLE001  (reported to the other side, which logs it)
        return {"broken": traceback.format_exc()[-4000:]}


def _send_answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    try:
        send_message(connection, answer)
    except (ProtocolError, MemoryError):  # too long
        send_message(connection, answer | {"result": None, "failed": "memory"})


class ForkServer:
    """Forks a child for each connection, and reports the end of a child that was killed before it could answer."""

    def __init__(self, control: socket.socket, operations: Operations):
        self._control = control
        self._operations = operations
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
        try:
            child = os.fork()
        except OSError:  # no memory, or too many processes: the client sees that its connection is closed
            connection.close()
            return True
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
            serve_connection(connection, self._operations)
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
                # Only these signals prove that the text is too expensive. Any other one can come from a busy machine,
                # or from one that is out of memory.
                failed = "cpu" if os.WTERMSIG(status) in CPU_SIGNALS else "time"
                with contextlib.suppress(OSError):  # the other side no longer waits
                    send_message(connection, {"failed": failed})
            connection.close()


def main() -> None:
    """Serve the process at the other end of the standard input."""
    warnings.simplefilter("ignore")  # warnings about the text of other people are noise here
    module = importlib.import_module(sys.argv[1])
    module.preload()
    gc.collect()
    gc.freeze()  # so that the collector does not touch, and copy, memory that children share
    ForkServer(socket.socket(fileno=0), module.OPERATIONS).serve()


if __name__ == "__main__":
    main()
