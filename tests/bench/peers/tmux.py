"""Reattaching a session after a kill of the control plane, beside ``tmux attach`` after a kill of its client."""

from __future__ import annotations

import os
import select
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tests.bench.figures import Figure
from tests.bench.restarts import fleet_to_attach
from tests.bench.world import World

WITHIN: Final = 30.0
SHOWN: Final = b"heron"


def of_one_session(world: World, rounds: int) -> list[Figure]:
    """Measure the best of alternating rounds."""
    ours, theirs = [], []
    with fleet_to_attach(world, 1) as attach, _server() as command:
        for _ in range(rounds):
            ours.append(attach()[0])
            theirs.append(_attach(command))
    version = subprocess.run(["tmux", "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    return [Figure("restart, 1 attached again", min(ours), f"tmux {version} attach, its start included", min(theirs))]


@contextmanager
def _server() -> Iterator[Sequence[str]]:
    """Yield the command of a tmux server without configuration, in which one session shows a word."""
    command = ("tmux", "-L", f"kandev-bench-{uuid.uuid4().hex}", "-f", os.devnull)
    subprocess.run([*command, "new-session", "-d", f"echo {SHOWN.decode()}; exec cat"], check=True)
    try:
        yield command
    finally:
        subprocess.run([*command, "kill-server"], check=True)


def _attach(command: Sequence[str]) -> float:
    """Return the seconds from the start of a client until it shows the session's output; kill it then."""
    ours, theirs = os.openpty()
    began = time.perf_counter()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen([*command, "attach"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as client:
        os.close(theirs)
        try:
            shown = b""
            while SHOWN not in shown:
                assert select.select([ours], [], [], WITHIN)[0], "tmux showed nothing"
                shown += os.read(ours, 1 << 16)
            return time.perf_counter() - began
        finally:
            client.kill()
            os.close(ours)
