"""What the commands ``serve`` and ``host`` share: addresses, exit codes, the log, and how a failure is reported."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl.state_files import AlreadyRunning, replace_file
from executors_app.wire import socket_urls
from executors_app.wire.errors import ExecutorError

EXIT_START_FAILED: Final = 2
EXIT_ALREADY_RUNNING: Final = 3
EXIT_NO_WORKSPACE: Final = 4


def log_to_stderr() -> None:
    """Log to standard error, without characters that could control the terminal of whoever reads the log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _PrintableFormatter(logging.Formatter):
    """Escapes what is not printable: the control plane's filter is not importable in a sandbox."""

    def format(self, record: logging.LogRecord) -> str:
        return "".join(map(_printable, super().format(record)))


def _printable(char: str) -> str:
    if char.isprintable() or char in "\t\n":
        return char
    return ascii(char)[1:-1]


def parse_address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; raises ValueError for anything else."""
    host, found, port = text.rpartition(":")
    if not found or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen: {text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def bracketed_host(host: str) -> str:
    """Return a host as it is written in a URL."""
    if ":" in host:
        return f"[{host}]"
    return host


def parse_socket_path(text: str) -> Path | None:
    """Return the path of ``unix:PATH``, or None for another address; raises ValueError if it is not absolute."""
    try:
        return socket_urls.unix_path(text)
    except ValueError as error:
        raise ValueError(f"--listen: {error}") from error


def report_lock_holder(held: AlreadyRunning, ready_file: Path | None) -> int:
    """Print the address of the agentctl that holds the directory, and return the exit code."""
    if held.ready is None:
        return report_start_failure(TimeoutError("another agentctl holds the state directory and is not ready"))
    ready = orjson.dumps(held.ready)
    if ready_file is not None and not ready_file.exists():
        replace_file(ready_file, ready)  # whoever started it died before reading it, or deleted it
    sys.stdout.write(ready.decode() + "\n")
    return EXIT_ALREADY_RUNNING


def report_workspace_error(error: ExecutorError, ready_file: Path | None) -> int:
    """Report why the workspace cannot be created, in the places the launcher reads, and return the exit code."""
    reported: dict[str, Any] = {"error": error.code, "message": error.message}
    if not error.permanent:
        reported["permanent"] = False
    answer = orjson.dumps(reported)
    if ready_file is not None:
        replace_file(ready_file, answer)
    sys.stdout.write(answer.decode() + "\n")
    return EXIT_NO_WORKSPACE


def report_start_failure(error: Exception) -> int:
    """Print why agentctl could not start, and return the exit code."""
    sys.stderr.write(f"agentctl: {error}\n")
    return EXIT_START_FAILED
