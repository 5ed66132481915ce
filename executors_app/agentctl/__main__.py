"""``python -m executors_app.agentctl serve ...``: the command line of agentctl.

Exit codes: 0 ended in good order, 2 could not start, 3 another agentctl has the state directory
(its ready info is on standard output).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import orjson

from executors_app import crash_points
from executors_app.agentctl import control_group, two_users
from executors_app.agentctl.agent_life import Create
from executors_app.agentctl.child_environment import arm_crash_point
from executors_app.agentctl.durable_files import replace_file
from executors_app.agentctl.instance_lock import Held, InstanceLock
from executors_app.agentctl.serving import Options, known_drivers, serve
from executors_app.agentctl.sidecar import Execution

COULD_NOT_START: Final = 2
HELD_BY_ANOTHER: Final = 3
_SHORTEST_TOKEN: Final = 16


def main(argv: Sequence[str] | None = None, drivers: Mapping[str, Create] | None = None) -> int:
    """Run agentctl; returns the exit code. ``drivers`` replace those of the package."""
    _start_clean()
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        arm_crash_point()
        if arguments.run_as:
            two_users.become(arguments.run_as)
        options = _options(arguments)
        lock = InstanceLock(options.execution.state_dir)
    except Held as held:
        return _report_the_first(held, arguments.ready_file)
    except (OSError, ValueError) as error:
        return _give_up(error)
    crash_points.reached("agentctl.lock_taken")
    execution_id = options.execution.execution_id
    try:
        control_group.enter(execution_id)
        asyncio.run(serve(options, lock, known_drivers() if drivers is None else drivers))
    except OSError as error:
        return _give_up(error)
    finally:
        control_group.leave(execution_id)
        lock.release()
    return 0


def _start_clean() -> None:
    """Forget what the starter's process had blocked, ignored and allowed."""
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentctl", description="The far end of one session.")
    serve_parser = parser.add_subparsers(dest="command", required=True).add_parser("serve", help="serve one execution")
    add = serve_parser.add_argument
    add("--workspace", type=Path, required=True, metavar="DIR")
    add("--state-dir", type=Path, required=True, metavar="DIR")
    add("--session-id", required=True, metavar="ID")
    add("--execution-id", required=True, metavar="ID")
    add("--token-file", type=Path, required=True, metavar="FILE", help="holds the bearer token; 0600")
    add("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    add("--ready-file", type=Path, metavar="FILE", help="written once it listens")
    add("--run-as", metavar="UID:GID", help="whose files and children these are; agentctl itself is out of their reach")
    add("--label", action="append", default=[], metavar="KEY=VALUE")
    return parser


def _options(arguments: argparse.Namespace) -> Options:
    host, port = _address(arguments.listen)
    state_dir: Path = arguments.state_dir.absolute()
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    execution = Execution(
        execution_id=arguments.execution_id,
        session_id=arguments.session_id,
        workspace=arguments.workspace.absolute(),
        state_dir=state_dir,
        labels=dict(_label(text) for text in arguments.label),
    )
    return Options(execution, _token(arguments.token_file), host, port, arguments.ready_file)


def _address(text: str) -> tuple[str, int]:
    host, found, port = text.rpartition(":")
    if not found or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen: {text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _label(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ValueError(f"--label: {text!r} is not KEY=VALUE")
    return name, value


def _token(path: Path) -> str:
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < _SHORTEST_TOKEN:
        raise ValueError(f"--token-file: the token has fewer than {_SHORTEST_TOKEN} characters")
    return token


def _report_the_first(held: Held, ready_file: Path | None) -> int:
    if held.ready is None:
        return _give_up(TimeoutError("another agentctl has the state directory and does not get ready"))
    ready = orjson.dumps(held.ready)
    if ready_file is not None and not ready_file.exists():
        replace_file(ready_file, ready)  # its starter died, or deleted it in good faith
    sys.stdout.write(ready.decode() + "\n")
    return HELD_BY_ANOTHER


def _give_up(error: Exception) -> int:
    sys.stderr.write(f"agentctl: {error}\n")
    return COULD_NOT_START


if __name__ == "__main__":
    sys.exit(main())
