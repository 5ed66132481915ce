"""Makes the workspace of an execution, with the agent's rights, before agentctl serves it and when it was deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import orjson

from executors_app.agentctl import child_environment, two_users
from executors_app.agentctl.places import workspace_root
from executors_app.agentctl.places.seed import read_seed, write_seed
from executors_app.errors import LaunchFailed

_SOURCE_ROOT: Final = Path(__file__).resolve().parents[2]
_LONGEST_ANSWER: Final = 1 << 20
_WITHIN: Final = 900.0


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a workspace is made from; agentctl keeps the seed in its state directory."""

    seed_file: Path
    root: Path
    """Of the workspace; unused where the work tree is a linked one of a repository outside."""
    owner_id: str
    """The session whose work tree it is."""
    workspace: Path
    """The work tree."""

    @property
    def repository(self) -> Path:
        """The workspace's own repository, or the work tree where that is linked to one outside."""
        own = workspace_root.repository_in(self.root)
        return own if own.is_dir() else self.workspace

    def branch(self) -> str:
        """The branch of the workspace; raises OSError, ValueError."""
        with self.seed_file.open("rb") as file:
            return read_seed(file).branch

    def at_start(self) -> None:
        """Make the workspace while agentctl has no threads yet. Raises ExecutorError, OSError, ValueError.

        In a container the work is done by a forked child that has become the agent's user: git may run what the
        repository's configuration names, and neither that nor a symbolic link may reach agentctl's own files.
        """
        with self.seed_file.open("rb") as file:
            answer = _in_child(partial(self._make, file)) if two_users.of_children() else self._make(file)
        self._settle(answer)

    def again(self) -> None:
        """Make what is missing of the workspace while agentctl serves; blocks. Raises as ``at_start``."""
        with self.seed_file.open("rb") as file:
            answer = self._in_process(file) if two_users.of_children() else self._make(file)
        self._settle(answer)

    def _make(self, file: IO[bytes]) -> dict[str, Any]:
        make = partial(workspace_root.make_from, file, self.root, self.owner_id, self.workspace)
        return workspace_root.answer_of(make)

    def _in_process(self, file: IO[bytes]) -> dict[str, Any]:
        """As ``_in_child``, but a process with threads cannot fork and go on in Python."""
        options = {"--root": self.root, "--owner": self.owner_id, "--worktree": self.workspace}
        words = [str(word) for option in options.items() for word in option]
        done = subprocess.run(
            [sys.executable, "-P", "-m", workspace_root.__name__, "make", *words],
            stdin=file,
            capture_output=True,
            timeout=_WITHIN,
            check=False,
            env=child_environment.build({"PYTHONPATH": str(_SOURCE_ROOT)}, {}),
            **two_users.of_children(),
        )
        return _read(done.stdout)

    def _settle(self, answer: dict[str, Any]) -> None:
        if "error" in answer:
            raise workspace_root.error_of(answer)
        with self.seed_file.open("rb") as file:
            seed = read_seed(file)
        if seed.complete:
            # Its pack is in the repository now. What is lost from here on is the control plane's to send again, so
            # that people are told of it.
            write_seed(replace(seed, complete=False, refs={}, hooks={}), self.seed_file)


def _in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            two_users.become_owner()
            with os.fdopen(writer, "wb") as answer:
                answer.write(orjson.dumps(work()))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as answer:
            said = answer.read(_LONGEST_ANSWER)
    finally:
        os.waitpid(pid, 0)
    return _read(said)


def _read(said: bytes) -> dict[str, Any]:
    """What the child answered; it is the agent's user, so this is checked."""
    try:
        answer = orjson.loads(said.splitlines()[-1])
        if isinstance(answer, dict):
            return answer
    except (ValueError, IndexError):
        pass
    raise LaunchFailed("The workspace could not be prepared: its process ended without an answer.")
