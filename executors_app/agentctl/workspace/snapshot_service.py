"""When snapshots of the workspace are taken, and what is journaled about them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.journal import Journal
from executors_app.agentctl.workspace.agent_preparation import Notice
from executors_app.agentctl.workspace.changes import changes_between
from executors_app.agentctl.workspace.kept_turns import keep_turn_snapshot
from executors_app.agentctl.workspace.left_commits import RefMemory
from executors_app.agentctl.workspace.snapshots import Snapshot, take_snapshot
from executors_app.agentctl.workspace.working_tree import MAX_REASON, SnapshotLimits
from executors_app.agentctl.workspace.workspace import Workspace
from executors_app.machine.git import recovery_snapshots, snapshot_restore
from executors_app.machine.git.saved_submodules import SubmoduleRestorer
from executors_app.machine.process import spawning
from executors_app.wire.protocol import ApiError, Code, JournalKind, validation_error

logger = logging.getLogger(__name__)

_NO_REPOSITORY: Final = (
    "The workspace is no longer a git repository: .git is missing. No snapshots are taken until it is back, so what "
    "changes from here on is lost with the directory."
)
_REPLACED_REPOSITORY: Final = (
    "The workspace's .git was replaced by a repository inside the directory. Snapshots are stored there from here "
    "on, so they are lost with the directory."
)
_MAX_NAMED_FILES: Final = 20
"""Maximum number of left-out paths in a journal line."""


class SnapshotService:
    """The recovery snapshots of one worktree, one at a time; ``session_id`` is the owner of the worktree."""

    def __init__(self, workspace: Workspace, session_id: str, state_dir: Path, journal: Journal):
        self._workspace, self._journal = workspace, journal
        self.session_id = session_id
        self._limits = SnapshotLimits()
        self._seen = RefMemory(owns_repository=workspace.preparation is not None)
        self._copy = _scratch_directory(state_dir) / "snapshot.index"
        self._lock = asyncio.Lock()
        self._left_out: list[str] = []
        """What the last journaled snapshot left out."""
        self._ignored_count = 0
        """How many ignored files it named."""
        self._settings_problem = ""
        self._had_repository = workspace.preparation is not None or workspace.git.has_repository
        self._repository_problem = ""
        self._scheduled: asyncio.Task[None] | None = None
        """A snapshot that has not started yet, and serves all requests until then."""

    # -- without being asked -----------------------------------------------------------------

    async def before_turn(self) -> None:
        """Take a snapshot before a turn; waits at most ``SnapshotLimits.turn_waits``, and never raises."""
        await self._wait(self._schedule("turn_start"), self._limits.turn_waits)

    def after_turn(self) -> None:
        """Take a snapshot after a turn, in the background."""
        self._schedule("turn_end")

    def after_change(self) -> None:
        """Take a snapshot after a person has changed or committed files, in the background."""
        self._schedule("asked")

    async def before_shutdown(self) -> None:
        """Take the last snapshot; waits at most ``SnapshotLimits.end_waits``, and never raises."""
        await self._wait(self._schedule("shutdown"), self._limits.end_waits)

    async def _wait(self, task: asyncio.Task[None] | None, seconds: float) -> None:
        if task is not None:
            await asyncio.wait((task,), timeout=seconds)

    def _schedule(self, reason: str) -> asyncio.Task[None] | None:
        self._warn_about_repository()
        if not self._workspace.git.has_repository:
            return None
        if self._scheduled is None:
            self._scheduled = asyncio.create_task(self._take_or_warn(reason), name="snapshot")
        return self._scheduled

    def _warn_about_repository(self) -> None:
        """Say once that snapshots have stopped, or are lost with the directory: an agent may remove ``.git``."""
        problem = self._find_repository_problem()
        if problem and problem != self._repository_problem:
            self._journal.append(JournalKind.LOG, level="warning", text=problem)
        self._repository_problem = problem

    def _find_repository_problem(self) -> str:
        workspace = self._workspace
        if workspace.git.has_repository:
            self._had_repository = True
            is_own = (workspace.root / ".git").is_dir()
            if workspace.preparation is not None and is_own:
                return _REPLACED_REPOSITORY
            return ""
        # A directory that is gone as a whole is reported by the status of the workspace.
        if self._had_repository and workspace.root.is_dir():
            return _NO_REPOSITORY
        return ""

    async def _take_or_warn(self, reason: str) -> None:
        try:
            await self.take(reason)
        except Exception as error:
            logger.warning("no snapshot was taken", exc_info=error)
            why = str(error) or type(error).__name__
            self._journal.append(
                JournalKind.LOG,
                level="warning",
                text="no snapshot of the working tree could be taken",
                data={"error": why},
            )

    # -- asked for ---------------------------------------------------------------------------

    async def take(self, reason: str) -> Snapshot:
        """Take a snapshot now, and journal it if something has changed; raises ApiError, OSError."""
        async with self._lock:
            # A request from here on needs its own snapshot: this one may miss its changes.
            self._scheduled = None
            return await self._take(reason)

    async def _take(self, reason: str) -> Snapshot:
        workspace = self._workspace
        parts = (workspace.git, self.session_id, self._copy, reason, self._limits)
        taken = await workspace.call(partial(take_snapshot, seen=self._seen), *parts)
        workspace.dirty = taken.dirty
        if taken.changed:
            await self._keep_for_turns(taken.commit)
        if taken.changed or (taken.left_out, taken.ignored_count) != (self._left_out, self._ignored_count):
            self._left_out, self._ignored_count = taken.left_out, taken.ignored_count
            about = {"ref": taken.ref, "commit": taken.commit, "reason": reason, "dirty": taken.dirty}
            named = {
                "left_out": taken.left_out[:_MAX_NAMED_FILES],
                "left_out_reasons": taken.left_out_reasons[:_MAX_NAMED_FILES],
                "left_out_count": len(taken.left_out),
                "ignored_count": taken.ignored_count,
            }
            self._journal.append(
                JournalKind.WORKSPACE_SNAPSHOT, **about, **named, branch=taken.branch or None, head=taken.head or None
            )
        self._warn_about_settings()
        return taken

    async def _keep_for_turns(self, commit: str) -> None:
        """Let the snapshot outlive the next one; a failure costs only that."""
        try:
            follows = await self._workspace.call(keep_turn_snapshot, self._workspace.git, self.session_id, commit)
        except (ApiError, OSError) as error:
            logger.warning("the snapshot %s is kept only until the next one: %s", commit, error)
            return
        if not follows:
            text = "the snapshots of earlier turns can no longer be read: what those turns changed is no longer shown"
            self._journal.append(JournalKind.LOG, level="warning", text=text)

    def tell(self, notice: Notice) -> None:
        """Journal something that people should know about the workspace."""
        self._journal.append(JournalKind.LOG, level="warning", text=notice.text, data={"code": notice.code})

    def _warn_about_settings(self) -> None:
        problem = self._workspace.git.private.settings_problem
        if problem and problem != self._settings_problem:
            text = "the settings of the repository could not be read, so the snapshot was taken without them"
            self._journal.append(JournalKind.LOG, level="warning", text=text, data={"error": problem[:MAX_REASON]})
        self._settings_problem = problem

    async def changed_since(self, commit: str) -> dict[str, Any]:
        """Return what has changed since an earlier snapshot, including untracked files; raises ApiError."""
        now = await self.take("asked")
        return await self._workspace.call(changes_between, self._workspace.git, commit, now.commit)

    async def restore(self, commit: str = "") -> dict[str, Any]:
        """Restore working tree and index from the newest snapshot, or from ``commit``.

        The current state is first stored under the ref ``kept``. Files that are not in the snapshot stay. Raises
        ApiError if HEAD differs from the snapshot's, because its files would undo later commits.
        """
        async with self._lock:
            wanted = await self._workspace.call(self._find, commit)
            now = await self._take("restore")
            if now.commit == wanted.commit:
                return {"restored": wanted.commit, "kept": None}
            aside = await self._workspace.call(self._replace, wanted, now.commit)
            await self._take("restored")
        return {"restored": wanted.commit, "kept": aside}

    def _find(self, commit: str) -> recovery_snapshots.RecoverySnapshot:
        git, text = self._workspace.git, self._workspace.git.text
        if commit and not (commit.isalnum() and commit.isascii() and 40 <= len(commit) <= 64):
            raise validation_error("commit must be a full commit id", field="commit")
        found = None
        with contextlib.suppress(ApiError):
            found = recovery_snapshots.find_recovery(
                text, commit or recovery_snapshots.session_recovery_ref(self.session_id)
            )
        if found is None or found.session_id != self.session_id:
            raise ApiError(Code.NOT_FOUND, "there is no such snapshot of this session")
        head = git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", good=(0, 1, 128)).text
        if head != found.head:
            raise ApiError(Code.CONFLICT, "there are new commits since this snapshot", head=head, base=found.head)
        return found

    def _replace(self, wanted: recovery_snapshots.RecoverySnapshot, now: str) -> str:
        text = partial(self._workspace.git.text, all_settings=True)
        present = recovery_snapshots.find_recovery(text, now)
        assert present is not None, "it was just taken"  # noqa: S101
        aside = recovery_snapshots.set_recovery_aside(text, present)
        snapshot_restore.restore_recovery(text, wanted)
        for problem in SubmoduleRestorer(self._workspace.git, wanted, rebuilt=False).restore():
            self._journal.append(JournalKind.LOG, level="warning", text=problem)
        return aside


def _scratch_directory(state_dir: Path) -> Path:
    """Return a directory that git can write to: as another user it cannot enter the state directory."""
    if spawning.child_user_arguments():
        return Path(tempfile.mkdtemp(prefix="agentctl-"))
    return state_dir
