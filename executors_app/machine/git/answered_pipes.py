"""Let git read a pipe in the place of one of its files as an empty file, instead of waiting for a writer forever.

An agent can put a pipe where git reads attributes, ignore rules or the list of submodules. Nothing in the workspace is
changed for that: while git runs, a process with the agent's rights opens the pipe for writing and closes it again.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from executors_app.machine.process import spawning

_WAIT_SECONDS: Final = 5.0
_WRITER: Final = """
import os, select, sys
while not select.select([0], [], [], 0.005)[0]:
    for path in sys.argv[1:]:
        try:
            # Fails unless somebody waits for a writer; changes nothing if the path is another file by now.
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:
            pass
"""
"""Ends with its standard input, so also if we are killed."""


@contextmanager
def answered_pipes(pipes: Sequence[Path]) -> Iterator[None]:
    """Answer everyone who reads from these pipes during the block with the end of the file."""
    if not pipes:
        yield
        return
    command = [sys.executable, "-I", "-S", "-c", _WRITER, *map(str, pipes)]
    options = spawning.child_user_arguments()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **options
    )
    try:
        yield
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(timeout=_WAIT_SECONDS)
        process.kill()
        process.wait()
