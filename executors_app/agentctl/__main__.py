"""``python -m executors_app.agentctl serve ...`` and ``... host ...``: the command line of agentctl.

``serve`` runs one execution; ``host`` runs the daemon that starts executions on its machine.

Exit codes: 0 clean end; 2 could not start; 3 another agentctl holds the state or root directory (its ready info is
printed on standard output); 4 the workspace could not be created (the reason is the last line of standard output, and
is in the ready file).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from executors_app.agentctl.agent_lifecycle import DriverFactory
from executors_app.agentctl.command_line import (
    log_to_stderr,
    parse_address,
    parse_socket_path,
    report_lock_holder,
    report_start_failure,
    report_workspace_error,
)
from executors_app.agentctl.daemon import ServeOptions, load_drivers, serve
from executors_app.agentctl.process import forked_guard
from executors_app.agentctl.sidecar import Execution
from executors_app.agentctl.state_files import AlreadyRunning, InstanceLock
from executors_app.agentctl.workspace.preparation import WorkspacePreparation
from executors_app.machine import crash_points
from executors_app.machine.git.workspace_root import WORKSPACE_ROOT
from executors_app.machine.process import identity, spawning
from executors_app.machine.process.spawning import arm_crash_point
from executors_app.wire.errors import ExecutorError

HOST: Final = "host"


def main(argv: Sequence[str] | None = None, drivers: Mapping[str, DriverFactory] | None = None) -> int:
    """Run agentctl and return its exit code. ``drivers`` replaces the drivers of the package (for tests)."""
    _start_clean()
    if argv is None:
        argv = sys.argv[1:]
    log_to_stderr()
    if argv[:1] == [HOST]:
        return _host(argv[1:])
    arguments = parser().parse_args(argv)
    try:
        arm_crash_point()
        if arguments.run_as:
            spawning.drop_privileges(arguments.run_as)
        options = _options(arguments)
        lock = InstanceLock(options.execution.state_dir)
    except AlreadyRunning as held:
        return report_lock_holder(held, arguments.ready_file)
    except (OSError, ValueError) as error:
        return report_start_failure(error)
    crash_points.reached("agentctl.lock_taken")
    execution_id = options.execution.execution_id
    try:
        # Under the lock, and before asyncio starts threads, because a forked child may do this.
        if options.execution.preparation is not None:
            options.execution.preparation.create_at_start()
        identity.enter_group(execution_id, forked_guard.own_pid())
        if drivers is None:
            drivers = load_drivers()
        asyncio.run(serve(options, lock, drivers))
    except ExecutorError as error:
        return report_workspace_error(error, options.ready_file)
    except (OSError, ValueError) as error:
        return report_start_failure(error)
    finally:
        identity.leave_group(execution_id)
        lock.release()
    return 0


def _host(argv: Sequence[str]) -> int:
    # Imported here, because a sidecar needs none of it.
    from executors_app.agentctl.host.daemon import main as host  # noqa: PLC0415

    return host(argv)


def _start_clean() -> None:
    """Reset umask, signal handlers and signal mask, which are inherited from whoever started agentctl."""
    os.umask(0o077)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


@cache
def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, which the launcher builds for all its forks."""
    created = argparse.ArgumentParser(
        prog="agentctl", description="Runs the agent of one session, or the agents of many sessions on one machine."
    )
    commands = created.add_subparsers(dest="command", required=True)
    commands.add_parser(HOST, help="start and supervise the executions of a machine", add_help=False)
    serve_parser = commands.add_parser("serve", help="serve one execution")
    add = serve_parser.add_argument
    add("--workspace", type=Path, required=True, metavar="DIR")
    add("--state-dir", type=Path, required=True, metavar="DIR")
    add("--session-id", required=True, metavar="ID")
    add("--worktree-of", default="", metavar="ID", help="the session that owns the worktree, if it is not this one")
    add("--execution-id", required=True, metavar="ID")
    add("--token-file", type=Path, required=True, metavar="FILE", help="contains the bearer token; mode 0600")
    add("--listen", default="127.0.0.1:0", metavar="unix:PATH|HOST:PORT", help="Unix socket or address to listen on")
    add("--seed", type=Path, metavar="FILE", help="seed to create the workspace from, if it does not exist")
    add(
        "--root",
        type=Path,
        default=WORKSPACE_ROOT,
        metavar="DIR",
        help="directory that contains the workspace's own repository",
    )
    add("--ready-file", type=Path, metavar="FILE", help="written once agentctl accepts connections")
    add(
        "--hold-socket",
        type=Path,
        metavar="SOCKET",
        help="socket on which a sprite accepts requests to stay awake; used while an agent runs",
    )
    add(
        "--run-as",
        metavar="UID:GID",
        help="owner of the files and child processes; agentctl itself runs as another user, which they cannot access",
    )
    add("--label", action="append", default=[], metavar="KEY=VALUE")
    return created


def _options(arguments: argparse.Namespace) -> ServeOptions:
    path, host, port = parse_socket_path(arguments.listen), "localhost", 0
    if path is None:
        host, port = parse_address(arguments.listen)
    state_dir: Path = arguments.state_dir.absolute()
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = arguments.worktree_of or arguments.session_id
    workspace = arguments.workspace.absolute()
    preparation = None
    if arguments.seed:
        preparation = WorkspacePreparation(arguments.seed, arguments.root, owner, workspace)
    execution = Execution(
        execution_id=arguments.execution_id,
        session_id=arguments.session_id,
        workspace=workspace,
        state_dir=state_dir,
        labels=dict(_label(text) for text in arguments.label),
        worktree_id=arguments.worktree_of,
        preparation=preparation,
    )
    return ServeOptions(execution, arguments.token_file, host, port, arguments.ready_file, arguments.hold_socket, path)


def _label(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ValueError(f"--label: {text!r} is not KEY=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
