"""Create the workspace from its seed, and create missing parts of it again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import orjson

from executors_app.machine.git import workspace_root
from executors_app.machine.git.seeds import read_seed, write_seed
from executors_app.machine.process import spawning

_SOURCE_ROOT: Final = Path(__file__).resolve().parents[3]
_MAX_ANSWER: Final = 1 << 20
_MAKE_TIMEOUT: Final = 900.0
_NO_ANSWER: Final = "The workspace could not be prepared: its process ended without an answer."


@dataclass(frozen=True, slots=True)
class WorkspacePreparation:
    """How to create a workspace; the seed is in agentctl's state directory."""

    seed_file: Path
    root: Path
    """The root of the workspace; unused if the work tree is linked to a repository outside."""
    owner_id: str
    """The session that owns the work tree."""
    workspace: Path
    """The work tree."""
    notes: list[str] = field(default_factory=list, compare=False)
    """What a rebuilt work tree lacks, until it is reported."""

    @property
    def repository(self) -> Path:
        """The workspace's own repository, or the work tree if it is linked to one outside."""
        own = workspace_root.sandbox_repository_path(self.root)
        if own.is_dir():
            return own
        return self.workspace

    def branch(self) -> str:
        """Return the branch of the workspace; raises OSError, ValueError."""
        with self.seed_file.open("rb") as file:
            return read_seed(file).branch

    def create_at_start(self) -> None:
        """Create the workspace before agentctl has threads. Raises ExecutorError, OSError, ValueError.

        In a container, a forked child does it as the agent's user: git may run programs that the repository's
        configuration names, and neither these nor a symbolic link may reach agentctl's own files.
        """
        with self.seed_file.open("rb") as file:
            if spawning.child_user_arguments():
                answer = _run_in_child(partial(self._create, file))
            else:
                answer = self._create(file)
        self._finish(answer)

    def recreate(self) -> None:
        """Create missing parts of the workspace while agentctl serves. Blocks; raises as ``create_at_start``."""
        with self.seed_file.open("rb") as file:
            if spawning.child_user_arguments():
                answer = self._create_in_process(file)
            else:
                answer = self._create(file)
        self._finish(answer)

    def _create(self, file: IO[bytes]) -> dict[str, Any]:
        make = partial(workspace_root.make_workspace_from_file, file, self.root, self.owner_id, self.workspace)
        return workspace_root.run_and_answer(make)

    def _create_in_process(self, file: IO[bytes]) -> dict[str, Any]:
        """Like ``_run_in_child``, but with a new interpreter: a process with threads must not fork and run Python."""
        arguments = ["--root", str(self.root), "--owner", self.owner_id, "--worktree", str(self.workspace)]
        done = subprocess.run(
            [sys.executable, "-P", "-m", workspace_root.__name__, "make", *arguments],
            stdin=file,
            capture_output=True,
            timeout=_MAKE_TIMEOUT,
            check=False,
            env=spawning.build_environment({"PYTHONPATH": str(_SOURCE_ROOT)}, {}),
            **spawning.child_user_arguments(),
        )
        return workspace_root.checked_answer(done.stdout, _NO_ANSWER)

    def _finish(self, answer: dict[str, Any]) -> None:
        if "error" in answer:
            raise workspace_root.parse_error(answer)
        if note := str(answer.get("note") or ""):
            self.notes.append(note)
        with self.seed_file.open("rb") as file:
            seed = read_seed(file)
        if seed.complete:
            # The pack is in the repository now, so the seed shrinks to an incomplete one. If the repository is lost
            # later, only the control plane can send its content again, and it reports the loss to people.
            write_seed(replace(seed, complete=False, refs={}, hooks={}), self.seed_file)


def _run_in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            spawning.become_owner()
            with os.fdopen(writer, "wb") as answer:
                answer.write(orjson.dumps(work()))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as answer:
            output = answer.read(_MAX_ANSWER)
    finally:
        os.waitpid(pid, 0)
    return workspace_root.checked_answer(output, _NO_ANSWER)
