"""Keeps the uncommitted work of a session: a snapshot before and after each turn and at the end.

A turn waits for its snapshot a few seconds at most, and never fails with one: what goes wrong is a
``log`` line of the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl import recovery_ref, two_users
from executors_app.agentctl.journal import Journal
from executors_app.agentctl.protocol import Code, Kind
from executors_app.agentctl.refusals import Refused, invalid
from executors_app.agentctl.workspace import changes, snapshots
from executors_app.agentctl.workspace.snapshots import Limits, Snapshot
from executors_app.agentctl.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

_NAMED: Final = 20
"""Paths that a journal line names of those that were left out."""


class Keeper:
    """The recovery snapshots of one worktree, one at a time; ``session_id`` is the session whose worktree it is."""

    def __init__(
        self,
        workspace: Workspace,
        session_id: str,
        state_dir: Path,
        journal: Journal,
        limits: Limits = Limits(),  # noqa: B008
    ):
        self._workspace, self._session_id, self._journal, self._limits = workspace, session_id, journal, limits
        self._copy = _scratch(state_dir) / "snapshot.index"
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        """A snapshot that has not begun: whoever wants one now gets this."""

    # -- without being asked -----------------------------------------------------------------

    async def before_turn(self) -> None:
        """Keep what is there before the agent goes on; waits ``Limits.turn_waits`` at most, and never raises."""
        await self._wait(self._soon("turn_start"), self._limits.turn_waits)

    def after_turn(self) -> None:
        """Keep what the agent has left, beside whatever comes next."""
        self._soon("turn_end")

    async def at_the_end(self) -> None:
        """Keep what is there before agentctl ends; waits ``Limits.end_waits`` at most, and never raises."""
        await self._wait(self._soon("shutdown"), self._limits.end_waits)

    async def _wait(self, task: asyncio.Task[None] | None, seconds: float) -> None:
        if task is not None:
            await asyncio.wait((task,), timeout=seconds)

    def _soon(self, reason: str) -> asyncio.Task[None] | None:
        if not self._workspace.git.has_repository:
            return None
        if self._next is None:
            self._next = asyncio.create_task(self._quietly(reason), name="snapshot")
        return self._next

    async def _quietly(self, reason: str) -> None:
        try:
            await self.take(reason)
        except Exception as error:
            logger.warning("no snapshot", exc_info=error)
            why = str(error) or type(error).__name__
            self._journal.append(
                Kind.LOG, level="warning", text="the working tree could not be kept", data={"error": why}
            )

    # -- asked for ---------------------------------------------------------------------------

    async def take(self, reason: str) -> Snapshot:
        """Keep the working tree now, and say so in the journal if it has changed; Refused, OSError."""
        async with self._turn:
            self._next = None
            return await self._take(reason)

    async def _take(self, reason: str) -> Snapshot:
        workspace = self._workspace
        call = workspace.call(snapshots.take, workspace.git, self._session_id, self._copy, reason, self._limits)
        taken = await call
        workspace.dirty = taken.dirty
        if taken.changed:
            named = {"left_out": taken.left_out[:_NAMED], "left_out_count": len(taken.left_out)}
            about = {"ref": taken.ref, "commit": taken.commit, "reason": reason, "dirty": taken.dirty}
            self._journal.append(Kind.WORKSPACE_SNAPSHOT, **about, **named)
        return taken

    async def changed_since(self, commit: str) -> dict[str, Any]:
        """What is another in the working tree now than in an earlier snapshot, untracked files included; Refused."""
        now = await self.take("asked")
        return await self._workspace.call(changes.between, self._workspace.git, commit, now.commit)

    async def restore(self, commit: str = "") -> dict[str, Any]:
        """Bring working tree and index back from the newest snapshot, or from the one that is named.

        What is there now is kept first, under ``kept``. Files that the snapshot does not have stay.
        Refused where HEAD is another than the snapshot's: its files would undo what was committed.
        """
        async with self._turn:
            wanted = await self._workspace.call(self._find, commit)
            now = await self._take("restore")
            if now.commit == wanted.commit:
                return {"restored": wanted.commit, "kept": None}
            kept = await self._workspace.call(self._replace, wanted, now.commit)
            await self._take("restored")
        return {"restored": wanted.commit, "kept": kept}

    def _find(self, commit: str) -> recovery_ref.Recovery:
        git, text = self._workspace.git, self._workspace.git.text
        if commit and not (commit.isalnum() and commit.isascii() and 40 <= len(commit) <= 64):
            raise invalid("commit must be the whole name of a commit", field="commit")
        found = None
        with contextlib.suppress(Refused):
            found = recovery_ref.find(text, commit or recovery_ref.ref_of(self._session_id))
        if found is None or found.session_id != self._session_id:
            raise Refused(Code.NOT_FOUND, "there is no such snapshot of this session")
        head = git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", good=(0, 1, 128)).text
        if head != found.head:
            raise Refused(Code.CONFLICT, "something was committed since this snapshot", head=head, base=found.head)
        return found

    def _replace(self, wanted: recovery_ref.Recovery, now: str) -> str:
        text = self._workspace.git.text
        present = recovery_ref.find(text, now)
        assert present is not None, "it was just taken"  # noqa: S101
        kept = recovery_ref.set_aside(text, present)
        recovery_ref.bring_back(text, wanted)
        return kept


def _scratch(state_dir: Path) -> Path:
    """Where git can write too: as another user than ours it does not get into the state directory."""
    return Path(tempfile.mkdtemp(prefix="agentctl-")) if two_users.of_children() else state_dir
