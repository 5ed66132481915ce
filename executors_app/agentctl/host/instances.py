"""The instances of one host: made, looked at and ended; each outlives the daemon, which finds them by their records."""

from __future__ import annotations

import asyncio
import hmac
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final
from weakref import WeakValueDictionary

import orjson

from executors_app.agentctl import journal_files
from executors_app.agentctl.host.orders import Order, Proof
from executors_app.agentctl.host.records import Record, Records, digest_of, host_id_of
from executors_app.agentctl.host.sources import Sources
from executors_app.agentctl.places import local_launch, workspace_root, worktrees
from executors_app.agentctl.places.disk import Disk
from executors_app.agentctl.places.launch_token import launch_of
from executors_app.agentctl.places.listeners import Listener
from executors_app.agentctl.places.machine import Machine
from executors_app.agentctl.protocol import Code
from executors_app.agentctl.refusals import Refused
from executors_app.domain import Launched, LaunchSpec, Observation

_AT_ONCE: Final = 64
_PAGE_BYTES: Final = 8 << 20


class Instances:
    """All instances under one root directory."""

    def __init__(self, root: Path, sources: Sources):
        self.host_id = host_id_of(root)
        self._disk = Disk(root)
        self._machine = Machine(self._disk, mints=False)
        self._records = Records(self._disk)
        self._sources = sources
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, order: Order) -> dict[str, Any]:
        """Make the workspace and start agentctl, or find what an earlier order of the same ids has left.

        Raises Refused for another's ids; WorkspaceGone, RepositoryUnusable, LaunchFailed.
        """
        async with self._locks.setdefault(order.execution_id, asyncio.Lock()):
            record, spec = await asyncio.to_thread(self._prepare, order)
            launched = await self._machine.launch(spec)
            await asyncio.to_thread(self._records.keep, record.launched(launched))
            token = self._records.token_of(order.execution_id)
        return _told_of(launched, token)

    async def look(self, timeout: float) -> list[dict[str, Any]]:
        """Every instance with what one look at it came to; each has ``timeout`` seconds of its own."""
        records = await asyncio.to_thread(self._records.all)
        facts = {one.execution_id: self._records.facts_of(one) for one in records}
        seen = await self._machine.observe(list(facts.values()), timeout=timeout, concurrency=_AT_ONCE)
        return [_told(one, facts[one.execution_id].auth_token, seen[one.execution_id]) for one in records]

    async def end(self, execution_id: str, proof: Proof) -> bool:
        """TERM, then KILL agentctl and what it has left, on proof; True when nothing is left."""
        record = self._owned(execution_id, proof)
        return await self._machine.end(self._records.facts_of(record))

    async def end_leftovers(self, execution_id: str, proof: Proof) -> int:
        """KILL what outlived a dead agentctl; returns how many."""
        record = self._owned(execution_id, proof)
        return await self._machine.end_leftovers(self._records.facts_of(record))

    async def forget(self, execution_id: str, proof: Proof) -> bool:
        """End an instance and take it from the list; worktree and journal stay."""
        ended = await self.end(execution_id, proof)
        if ended:
            self._records.forget(execution_id)
        return ended

    def resume_token(self, execution_id: str) -> str | None:
        """The agent's conversation id that agentctl has left; a credential."""
        self._known(execution_id)
        return self._disk.resume_token(execution_id)

    def journal_page(self, execution_id: str, after: int, epoch: str) -> dict[str, Any]:
        """The journal behind a cursor: ``{lines, more}``, some megabytes at a time. Blocks."""
        self._known(execution_id)
        directory = journal_files.journal_directory(self._disk.places_of(execution_id).path)
        lines, size = [], 0
        left: Iterator[dict[str, Any]] = iter(())
        with suppress(OSError):
            left = journal_files.read_lines(directory, after, epoch or None)
            for line in left:
                lines.append(line)
                size += len(orjson.dumps(line))
                if size > _PAGE_BYTES:
                    break
        return {"lines": lines, "more": size > _PAGE_BYTES}

    def work_of(self, execution_id: str, known: Sequence[str]) -> tuple[dict[str, Any], IO[bytes]]:
        """The session's branch and snapshots: the answer of ``workspace_root.pack``, and its bundle. Blocks."""
        record = self._known(execution_id)
        worktree = self._disk.worktree_of(record.session_id, record.worktree_path, record.worktree_branch)
        bundle = tempfile.TemporaryFile(dir=self._disk.places_of(execution_id).path)  # noqa: SIM115  (the caller's)
        try:
            packed = workspace_root.pack(Path(record.repository), worktree, known, bundle)
        except BaseException:
            bundle.close()
            raise
        bundle.seek(0)
        return packed, bundle

    def admits(self, execution_id: str, bearer: bytes) -> bool:
        """Whether that is the token of this instance."""
        token = self._records.token_of(execution_id).encode()
        return hmac.compare_digest(bearer, token) and bool(token)

    def listener_of(self, execution_id: str) -> Listener:
        """Where its agentctl listens; Refused where none lives, so that no stranger there gets the token."""
        listener = local_launch.listener_in(self._disk.places_of(execution_id), execution_id)
        if listener is None:
            raise Refused(Code.INSTANCE_UNREACHABLE, "the agentctl of this instance does not run")
        return listener

    def _prepare(self, order: Order) -> tuple[Record, LaunchSpec]:
        """Whose it is, which repository, and a record of it before anything is made."""
        known = self._records.find(order.execution_id)
        if known is not None and (known.session_id, known.deployment) != (order.session_id, order.deployment):
            raise Refused(Code.CONFLICT, "this execution belongs to another session")
        token = self._records.token_of(order.execution_id)
        if token not in {"", order.token, order.earlier_token}:
            # Whoever has the secret that the token follows from can tell it by this.
            raise Refused(Code.CONFLICT, "this execution has another token", launch=launch_of(token))
        place = worktrees.place_of(self._disk.root, order.session_id)
        if order.worktree_path and (order.worktree_path, order.worktree_branch) != (str(place.path), place.branch):
            raise Refused(Code.CONFLICT, f"the worktree {order.worktree_path} is not of this host")
        existed = bool(order.worktree_path or (known and known.worktree_path))
        repository, base = self._sources.find(order.repository, order.base_branch, existed=existed)
        ids = (order.execution_id, order.session_id, order.task_id)
        record = known or Record(*ids, order.deployment, str(repository), base)
        record = replace(record, repository=str(repository), base_branch=base)
        self._records.keep(record)
        path, branch = (str(place.path), place.branch) if existed else ("", "")
        spec = LaunchSpec(*ids, str(repository), base, order.token, worktree_path=path, worktree_branch=branch)
        return record, spec

    def _known(self, execution_id: str) -> Record:
        record = self._records.find(execution_id)
        if record is None:
            raise Refused(Code.NOT_FOUND, "there is no such instance")
        return record

    def _owned(self, execution_id: str, proof: Proof) -> Record:
        record = self._known(execution_id)
        if (record.session_id, record.deployment) != (proof.session_id, proof.deployment):
            raise Refused(Code.CONFLICT, "this instance is another's; nothing was done about it")
        return record


def _told_of(launched: Launched, token: str) -> dict[str, Any]:
    return {
        "launch": launch_of(token),
        "pid": launched.pid,
        "boot_id": launched.boot_id,
        "workspace_path": launched.workspace_path,
        "worktree_id": launched.worktree_id,
        "worktree_path": launched.worktree_path,
        "worktree_branch": launched.worktree_branch,
        "found": launched.found,
    }


def _told(record: Record, token: str, seen: Observation) -> dict[str, Any]:
    return {
        "execution_id": record.execution_id,
        "session_id": record.session_id,
        "deployment": record.deployment,
        "token_digest": digest_of(token),
        "launch": launch_of(token),
        "observed": seen.observed,
        "reason": seen.reason,
        "report": seen.report,
        "workspace": seen.workspace,
        "workspace_reason": seen.workspace_reason,
        "leftovers": seen.leftovers,
    }
