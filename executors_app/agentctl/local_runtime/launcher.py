"""The launcher: a process that has imported all of agentctl and forks each agentctl of this machine.

Run as ``python -m executors_app.agentctl.local_runtime.launcher FD ROOM`` by the process that starts agentctls. That is
its only client, and it ends with it (``process/forking.py``). So a launcher never serves another release than its own,
has the user, limits and control group of its client, and listens nowhere. Its forks share what it has imported.
"""

from __future__ import annotations

import codecs
import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from executors_app.agentctl import __main__ as agentctl
from executors_app.agentctl.daemon import load_drivers, log_to_stderr
from executors_app.agentctl.local_runtime.rehearsal import rehearse
from executors_app.agentctl.process import forked_guard, forking, spawning
from executors_app.agentctl.protocol import EXECUTION_MARKER

logger = logging.getLogger(__name__)

_ANY_ARGUMENTS: Final = (
    *("serve", "--workspace", "/", "--state-dir", "/", "--token-file", "/", "--ready-file", "/"),
    *("--session-id", "any", "--execution-id", "any", "--listen", "unix:/any", "--seed", "/"),
)


def main() -> None:
    """Import what agentctl needs, and serve the descriptor on the command line."""
    log_to_stderr()
    _prepare()
    if threading.active_count() != 1 or len(list(Path("/proc/self/task").iterdir())) != 1:
        sys.exit("the launcher has threads: a fork of it would not be safe")
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        program = forking.Program(_fork_guard, _run_agentctl)
        forking.serve_forks(connection, sys.orig_argv[:-1], spawning.inherited_environment(), program)


def _prepare() -> None:
    """Make what is made when it is first used: else each fork would make it again, in memory of its own."""
    load_drivers()
    agentctl.parser().parse_args(_ANY_ARGUMENTS)
    codecs.lookup("ascii")
    try:
        rehearse()
    except OSError as error:
        logger.warning("forks take more memory than they could, because nothing can be served here: %s", error)


def _fork_guard(own: forking.ProcIdentity, argv: Sequence[str]) -> None:
    # First, because everything that happens before this fork takes memory twice.
    forked_guard.start({EXECUTION_MARKER: argv[argv.index("--execution-id") + 1]}, own)


def _run_agentctl(argv: Sequence[str], files: Sequence[int]) -> int:
    (log,) = files
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    return agentctl.main(argv[argv.index("serve") :])


if __name__ == "__main__":
    main()
