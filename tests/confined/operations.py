"""Operations of the tests: each does one thing to its child process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sessions_app.confined.link import ClientLink


def echo(link: ClientLink, text: str) -> dict[str, Any]:
    """Return the text, and the child that did."""
    return {"text": text, "process": os.getpid()}


def burn(link: ClientLink, seconds: float = 60) -> dict[str, Any]:
    """Use processor time in Python."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    return {}


def burn_natively(link: ClientLink) -> dict[str, Any]:
    """Use processor time in one call of a native function, which runs no signal handler."""
    return {"sum": sum(range(1 << 40))}


def stubborn(link: ClientLink) -> dict[str, Any]:
    """Use processor time, and catch every exception, as some libraries do."""
    while True:
        with contextlib.suppress(Exception):
            burn(link)


def take_memory(link: ClientLink, size: int) -> dict[str, Any]:
    """Use memory."""
    return {"length": len(bytearray(size))}


def long_result(link: ClientLink) -> dict[str, Any]:
    """Return more than one message can hold."""
    return {"text": "x" * (33 << 20)}


def sleep(link: ClientLink) -> dict[str, Any]:
    """Use no processor time, and do not end."""
    time.sleep(600)
    return {}


def wait_for_client(link: ClientLink) -> dict[str, Any]:
    """End when the client answers, and return its answer."""
    return link.ask({"waits": True})


def die(link: ClientLink) -> dict[str, Any]:
    """End as when the machine is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def fail(link: ClientLink) -> dict[str, Any]:
    """Raise an exception."""
    raise ValueError("a bug")


def open_file(link: ClientLink) -> dict[str, Any]:
    """Read a file that exists."""
    return {"text": Path(__file__).read_text()}


def any_operation(link: ClientLink, operation: str, **arguments: Any) -> dict[str, Any]:
    """Do what another operation does."""
    return OPERATIONS[operation](link, **arguments)


OPERATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    operation.__name__: operation
    for operation in (
        *(echo, burn, burn_natively, stubborn, take_memory, long_result),
        *(sleep, wait_for_client, die, fail, open_file, any_operation),
    )
}


def preload() -> None:
    """Import nothing more."""
