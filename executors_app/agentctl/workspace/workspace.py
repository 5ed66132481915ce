"""The workspace of one execution: create it with the agent's rights, report it, and run its blocking calls.

It is created before agentctl serves, and again after it was deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, ParamSpec, TypeVar

import orjson

from executors_app.agentctl.workspace.agent_preparation import Notice, prepare_workspace
from executors_app.agentctl.workspace.shells import ShellManager
from executors_app.machine.git import git_directory, workspace_root
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.machine.git.worktrees import Worktree, read_seed, write_seed
from executors_app.machine.process import spawning
from executors_app.wire.errors import ExecutorError, RepositoryUnusable, WorkspaceGone
from executors_app.wire.protocol import ApiError, Code

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
        options = {"--root": self.root, "--owner": self.owner_id, "--worktree": self.workspace}
        arguments = [str(word) for option in options.items() for word in option]
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


def _head_report(workspace: Path) -> dict[str, Any]:
    """Return ``{branch, operation}``: the checked-out branch and what git is in the middle of; runs no git."""
    folder = git_directory.git_directory_of(workspace)
    if folder is None:
        return {"branch": None, "operation": None}
    return {
        "branch": git_directory.read_head(folder).branch or None,
        "operation": git_directory.operation_in_progress(folder) or None,
    }


P = ParamSpec("P")
T = TypeVar("T")

_CODES: Final = {WorkspaceGone.code: Code.WORKTREE_MISSING, RepositoryUnusable.code: Code.GIT_FAILED}
_THREADS: Final = 4
"""A hanging git can delay only other calls on the workspace."""


class Workspace:
    """One workspace; ``root`` may be missing, or not be a repository."""

    def __init__(self, root: Path, marker: Mapping[str, str], preparation: WorkspacePreparation | None = None):
        self.root = root
        self.preparation = preparation
        self.git = WorkspaceGit(root, marker)
        self.shells = ShellManager(root, marker)
        self.dirty: bool | None = None
        """Whether there were uncommitted changes at the last check; None before the first."""
        self.rebuild_note = ""
        """What the workspace lacks that was rebuilt for the agent that starts now; empty if it was not lost."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="workspace")

    def report(self) -> dict[str, Any]:
        """Return ``workspace`` of ``GET /status``; runs no git."""
        return {
            "path": str(self.root),
            "exists": self.root.is_dir(),
            **_head_report(self.root),
            "dirty": self.dirty,
            "shells": self.shells.running_count,
        }

    def prepare_for_agent(self) -> list[Notice]:
        """Repair what would break the agent's git, and return what should be known. Blocks; never raises."""
        notes = self.preparation.notes if self.preparation else []
        rebuilt = [Notice("workspace_rebuilt", f"The worktree was rebuilt. {note}") for note in notes]
        self.rebuild_note = " ".join(notes)
        notes.clear()
        if not self.git.has_repository:
            return rebuilt
        return [*rebuilt, *prepare_workspace(self.git, self._new_base(), rebuilt=bool(rebuilt))]

    def _new_base(self) -> str:
        """Return the branch that a new session starts from; empty if it started earlier."""
        if self.preparation is None:
            return ""
        try:
            with self.preparation.seed_file.open("rb") as file:
                seed = read_seed(file)
        except (OSError, ValueError):
            return ""
        if seed.existed:
            return ""
        return seed.base or (_checked_out_branch(Path(seed.repository)) if seed.repository else "")

    def head(self) -> dict[str, str | None]:
        """Return ``{branch, head}``: what is checked out, null for none. Blocks."""
        commit = ""
        with contextlib.suppress(ApiError):
            commit = self.git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", good=(0, 1, 128)).text
        return {"branch": _head_report(self.root)["branch"], "head": commit or None}

    def rebuild_workspace(self) -> dict[str, Any]:
        """Rebuild what was deleted; return ``{made}``, False if nothing was missing. Blocks; raises ApiError."""
        preparation = self.preparation
        if preparation is None or (self.root / ".git").exists():
            return {"made": False}
        try:
            preparation.recreate()
        except ExecutorError as error:
            raise ApiError(
                _CODES.get(error.code, Code.INTERNAL_ERROR), error.message, permanent=error.permanent
            ) from error
        return {"made": True}

    def pack_work(self, known: Sequence[str]) -> tuple[dict[str, Any], IO[bytes]]:
        """Pack the session's work: the result of ``workspace_root.pack_work`` and a bundle. Blocks; raises ApiError."""
        preparation = self.preparation
        if preparation is None:
            raise ApiError(Code.CONFLICT, "this workspace has no repository of its own")
        # An unnamed file in our own directory: the agent cannot replace it by something that is sent as its work.
        bundle = tempfile.TemporaryFile(dir=preparation.seed_file.parent)  # noqa: SIM115  (the caller's to close)
        try:
            worktree = Worktree(preparation.workspace.with_name(preparation.owner_id), preparation.branch())
            packed = workspace_root.pack_work(preparation.repository, worktree, known, bundle)
        except ExecutorError as error:
            bundle.close()
            raise ApiError(_CODES.get(error.code, Code.INTERNAL_ERROR), error.message) from error
        bundle.seek(0)
        return packed, bundle

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function in a thread of this workspace."""
        work = self._threads.submit(function, *args, **kwargs)
        return await asyncio.wrap_future(work)

    async def close(self) -> None:
        """Kill running gits and stop the threads."""
        self.git.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


def _checked_out_branch(repository: Path) -> str:
    """Return the branch at which a session without a base starts; empty if HEAD is detached or cannot be read."""
    return git_directory.read_head(git_directory.git_directory_of(repository) or repository).branch
