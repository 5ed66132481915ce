"""Create, observe and end the instances of one host. They outlive its daemon."""

from __future__ import annotations

import asyncio
import hmac
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final
from weakref import WeakValueDictionary

import orjson

from executors_app.agentctl.host.allowed_repositories import AllowedRepositories
from executors_app.agentctl.host.instance_requests import InstanceOrder, OwnershipProof
from executors_app.agentctl.host.records import InstanceRecord, InstanceRecords, load_host_id, token_digest
from executors_app.machine import launch
from executors_app.machine.git import workspace_root, worktrees
from executors_app.machine.listeners import AgentctlListener
from executors_app.machine.local_machine import LocalMachine
from executors_app.machine.storage import ExecutionStorage
from executors_app.wire import journal_files
from executors_app.wire.executions import Launched, LaunchSpec, Observation
from executors_app.wire.launch_tokens import launch_nonce
from executors_app.wire.protocol import ApiError, Code

_MAX_CONCURRENT_POLLS: Final = 64
_PAGE_BYTES: Final = 8 << 20


class InstanceManager:
    """All instances under one root directory."""

    def __init__(self, root: Path, sources: AllowedRepositories):
        self.host_id = load_host_id(root)
        self._storage = ExecutionStorage(root)
        self._machine = LocalMachine(self._storage, derives_tokens=False)
        self._records = InstanceRecords(self._storage)
        self._sources = sources
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, order: InstanceOrder) -> dict[str, Any]:
        """Start an instance, or find what an earlier request with the same ids has started.

        Raises ApiError if the ids belong to another owner; WorkspaceGone, RepositoryUnusable, LaunchFailed.
        """
        async with self._locks.setdefault(order.execution_id, asyncio.Lock()):
            record, spec = await asyncio.to_thread(self._prepare, order)
            launched = await self._machine.launch(spec)
            # If the host dies before this, the next request with the same ids finds the running agentctl.
            await asyncio.to_thread(self._records.keep, record.launched(launched))
            token = self._records.token_of(order.execution_id)
        return _launch_report(launched, token)

    async def observe(self, timeout: float) -> list[dict[str, Any]]:
        """Observe every instance; each has ``timeout`` seconds of its own."""
        records = await asyncio.to_thread(self._records.all)
        facts = {record.execution_id: self._records.facts_of(record) for record in records}
        seen = await self._machine.observe(list(facts.values()), timeout=timeout, concurrency=_MAX_CONCURRENT_POLLS)
        reports = []
        for record in records:
            token = facts[record.execution_id].auth_token
            reports.append(_instance_report(record, token, seen[record.execution_id]))
        return reports

    async def end(self, execution_id: str, proof: OwnershipProof) -> bool:
        """End agentctl and what it has left, after a proof of ownership; return whether nothing is left."""
        record = self._owned_record(execution_id, proof)
        return await self._machine.end(self._records.facts_of(record))

    async def end_leftovers(self, execution_id: str, proof: OwnershipProof) -> int:
        """Kill what outlived a dead agentctl; return how many processes."""
        record = self._owned_record(execution_id, proof)
        return await self._machine.end_leftovers(self._records.facts_of(record))

    async def forget(self, execution_id: str, proof: OwnershipProof) -> bool:
        """End an instance and remove it from the list; worktree and journal stay."""
        ended = await self.end(execution_id, proof)
        if ended:
            self._records.forget(execution_id)
        return ended

    def resume_token(self, execution_id: str) -> str | None:
        """Return the agent's conversation id that agentctl saved; a credential."""
        self._record_of(execution_id)
        return self._storage.resume_token(execution_id)

    def journal_page(self, execution_id: str, after: int, epoch: str) -> dict[str, Any]:
        """Return the journal after a cursor as ``{lines, more}``, some megabytes at a time. Blocks."""
        self._record_of(execution_id)
        directory = journal_files.journal_directory(self._storage.state_directory_of(execution_id).path)
        lines, size = [], 0
        with suppress(OSError):
            for line in journal_files.read_lines(directory, after, epoch or None):
                lines.append(line)
                size += len(orjson.dumps(line))
                if size > _PAGE_BYTES:
                    break
        return {"lines": lines, "more": size > _PAGE_BYTES}

    def pack_work(self, execution_id: str, known: Sequence[str]) -> tuple[dict[str, Any], IO[bytes]]:
        """Pack the session's branch and snapshots: the result of ``workspace_root.pack_work`` and a bundle. Blocks."""
        record = self._record_of(execution_id)
        worktree = self._storage.worktree_of(record.session_id, record.worktree_path, record.worktree_branch)
        bundle = tempfile.TemporaryFile(dir=self._storage.state_directory_of(execution_id).path)  # noqa: SIM115  (the caller's)
        try:
            packed = workspace_root.pack_work(Path(record.repository), worktree, known, bundle)
        except BaseException:
            bundle.close()
            raise
        bundle.seek(0)
        return packed, bundle

    def is_valid_token(self, execution_id: str, bearer: bytes) -> bool:
        """Whether ``bearer`` is the token of this instance."""
        token = self._records.token_of(execution_id).encode()
        return hmac.compare_digest(bearer, token) and bool(token)

    def find_listener(self, execution_id: str) -> AgentctlListener:
        """Return the proven listener of an instance; raises ApiError if none runs: no one else may get the token."""
        listener = launch.find_listener(self._storage.state_directory_of(execution_id), execution_id)
        if listener is None:
            raise ApiError(Code.INSTANCE_UNREACHABLE, "the agentctl of this instance is not running")
        return listener

    def _prepare(self, order: InstanceOrder) -> tuple[InstanceRecord, LaunchSpec]:
        """Check the owner, find the repository, and write the record before anything is started."""
        known = self._records.find(order.execution_id)
        if known is not None and (known.session_id, known.deployment) != (order.session_id, order.deployment):
            raise ApiError(Code.CONFLICT, "this execution belongs to another session")
        token = self._records.token_of(order.execution_id)
        if token not in {"", order.token, order.earlier_token}:
            # The nonce lets the owner of the secret derive the token.
            raise ApiError(Code.CONFLICT, "this execution has another token", launch=launch_nonce(token))
        worktree = worktrees.session_worktree(self._storage.root, order.session_id)
        if order.worktree_path and (order.worktree_path, order.worktree_branch) != (
            str(worktree.path),
            worktree.branch,
        ):
            raise ApiError(Code.CONFLICT, f"the worktree {order.worktree_path} does not belong to this host")
        existed = bool(order.worktree_path or (known and known.worktree_path))
        repository, base = self._sources.find(order.repository, order.base_branch, existed=existed)
        ids = (order.execution_id, order.session_id, order.task_id)
        record = known or InstanceRecord(*ids, order.deployment, str(repository), base)
        record = replace(record, repository=str(repository), base_branch=base)
        self._records.keep(record)
        path = branch = ""
        if existed:
            path, branch = str(worktree.path), worktree.branch
        spec = LaunchSpec(*ids, str(repository), base, order.token, worktree_path=path, worktree_branch=branch)
        return record, spec

    def _record_of(self, execution_id: str) -> InstanceRecord:
        record = self._records.find(execution_id)
        if record is None:
            raise ApiError(Code.NOT_FOUND, "there is no such instance")
        return record

    def _owned_record(self, execution_id: str, proof: OwnershipProof) -> InstanceRecord:
        record = self._record_of(execution_id)
        if (record.session_id, record.deployment) != proof:
            raise ApiError(Code.CONFLICT, "this instance belongs to another owner; nothing was changed")
        return record


def _launch_report(launched: Launched, token: str) -> dict[str, Any]:
    return {
        "launch": launch_nonce(token),
        "pid": launched.pid,
        "boot_id": launched.boot_id,
        "workspace_path": launched.workspace_path,
        "worktree_id": launched.worktree_id,
        "worktree_path": launched.worktree_path,
        "worktree_branch": launched.worktree_branch,
        "found": launched.found,
    }


def _instance_report(record: InstanceRecord, token: str, seen: Observation) -> dict[str, Any]:
    return {
        "execution_id": record.execution_id,
        "session_id": record.session_id,
        "deployment": record.deployment,
        "token_digest": token_digest(token),
        "launch": launch_nonce(token),
        "observed": seen.observed,
        "reason": seen.reason,
        "report": seen.report,
        "workspace": seen.workspace,
        "workspace_reason": seen.workspace_reason,
        "leftovers": seen.leftovers,
    }
