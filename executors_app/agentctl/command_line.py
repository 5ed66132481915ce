"""What the commands of agentctl have in common: addresses, exit codes, last words."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Final

import orjson

from executors_app.agentctl import unix_socket
from executors_app.agentctl.durable_files import replace_file
from executors_app.agentctl.instance_lock import Held
from executors_app.errors import ExecutorError

COULD_NOT_START: Final = 2
HELD_BY_ANOTHER: Final = 3
NO_WORKSPACE: Final = 4


def log_to_stderr() -> None:
    """The log of a process that nobody else set one up for."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def address(text: str) -> tuple[str, int]:
    """``HOST:PORT`` as a pair; ValueError for anything else."""
    host, found, port = text.rpartition(":")
    if not found or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen: {text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def socket_path(text: str) -> Path | None:
    """The path of ``unix:PATH``; None for another address, ValueError for a path that is not absolute."""
    try:
        return unix_socket.path_of(text)
    except ValueError as error:
        raise ValueError(f"--listen: {error}") from error


def report_the_first(held: Held, ready_file: Path | None) -> int:
    """Tell where the one is that has the directory already; the exit code."""
    if held.ready is None:
        return give_up(TimeoutError("another agentctl has the state directory and does not get ready"))
    ready = orjson.dumps(held.ready)
    if ready_file is not None and not ready_file.exists():
        replace_file(ready_file, ready)  # its starter died, or deleted it in good faith
    sys.stdout.write(ready.decode() + "\n")
    return HELD_BY_ANOTHER


def report_the_workspace(error: ExecutorError, ready_file: Path | None) -> int:
    """Say why the workspace cannot be made, where the launcher looks for it; the exit code."""
    permanent = {} if error.permanent else {"permanent": False}
    answer = orjson.dumps({"error": error.code, "message": error.message, **permanent})
    if ready_file is not None:
        replace_file(ready_file, answer)
    sys.stdout.write(answer.decode() + "\n")
    return NO_WORKSPACE


def give_up(error: Exception) -> int:
    """Say why nothing could be started; the exit code."""
    sys.stderr.write(f"agentctl: {error}\n")
    return COULD_NOT_START
