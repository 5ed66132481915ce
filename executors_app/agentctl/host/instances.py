"""The instances of one host: create, observe and end them, in repositories that the host's operator allows.

Instances outlive the daemon.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import orjson

from executors_app.agentctl.host.records import (
    InstanceOrder,
    InstanceRecord,
    InstanceRecords,
    OwnershipProof,
    load_host_id,
    token_digest,
)
from executors_app.machine import launch
from executors_app.machine.git import workspace_root, worktrees
from executors_app.machine.git.workspace_git import RepositoryGitFailed, run_git
from executors_app.machine.local_machine import LocalMachine
from executors_app.machine.sockets import AgentctlListener
from executors_app.machine.storage import ExecutionStorage
from executors_app.wire import line_format
from executors_app.wire.errors import RepositoryUnusable, WorkspaceGone
from executors_app.wire.executions import Launched, LaunchSpec, Observation
from executors_app.wire.launch_tokens import launch_nonce
from executors_app.wire.protocol import ApiError, Code

_URL: Final = re.compile(r"(https?|ssh|git|file)://[\x21-\x7e]+")
_FETCH_TIMEOUT: Final = 600.0
_CLONE_OPTIONS: Final = ("-c", "protocol.ext.allow=never", "-c", "http.followRedirects=false")
"""A URL may neither name a program to run nor redirect to a place that was not allowed."""
_PARENT_REFERENCE: Final = re.compile(r"\.\.|%2[ef]", re.IGNORECASE)
_REMOTE_HEAD: Final = "origin/HEAD"


class AllowedRepositories:
    """What ``--repositories`` allows: absolute folders, and URL prefixes that end at a path segment."""

    def __init__(self, allowed: Sequence[str], root: Path):
        self._urls = [entry for entry in allowed if _URL.fullmatch(entry)]
        self._folders = [Path(entry) for entry in allowed if entry not in self._urls]
        if wrong := [str(folder) for folder in self._folders if not folder.is_absolute()]:
            raise ValueError(f"--repositories: {', '.join(wrong)} is neither an absolute folder nor a URL")
        self._clones = root / "repositories"
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    def find(self, repository: str, base: str, *, existed: bool) -> tuple[Path, str]:
        """Return the local repository and the branch to start from; blocks while a clone is updated.

        ``existed``: a worktree of it was created before, so nothing is fetched, and a lost clone is not silently
        replaced by a new one. Raises RepositoryUnusable, RepositoryGitFailed, WorkspaceGone.
        """
        if not repository:
            raise RepositoryUnusable("The task has no repository.")
        if _URL.fullmatch(repository):
            return self._cloned(repository, existed=existed), base or _REMOTE_HEAD
        return self._folder(repository), base

    def _folder(self, repository: str) -> Path:
        try:
            if not Path(repository).is_absolute():
                raise RepositoryUnusable("The repository must be an absolute path or a URL.")
            path = Path(repository).resolve()
            allowed = any(path.is_relative_to(folder.resolve()) for folder in self._folders)
        except (OSError, ValueError, RuntimeError) as error:
            raise RepositoryUnusable("The repository is not a valid path.") from error
        if not allowed:
            raise RepositoryUnusable(
                f"The host does not allow the repository {repository}. Add it with --repositories and restart the host."
            )
        return path

    def _cloned(self, url: str, *, existed: bool) -> Path:
        if not any(
            url == prefix or url.startswith(prefix.rstrip("/") + "/") for prefix in self._urls
        ) or _PARENT_REFERENCE.search(url):
            raise RepositoryUnusable(
                "The host does not allow this repository URL. Add it with --repositories and restart the host."
            )
        if urlsplit(url).password:
            raise RepositoryUnusable("The URL contains a password. Configure git credentials on the host instead.")
        clone = self._clones / f"{hashlib.sha256(url.encode()).hexdigest()[:24]}.git"
        if existed and not clone.is_dir():
            raise WorkspaceGone("The host's clone of the repository was deleted, and the session's branch with it.")
        if not existed:
            with self._locks[clone]:
                _update_clone(clone, url)
        return clone


def _update_clone(clone: Path, url: str) -> None:
    """Create or update a clone. Every step is idempotent, because a host may be killed between any two."""
    clone.mkdir(parents=True, exist_ok=True, mode=0o700)
    run_git(clone, "init", "--quiet", "--bare")
    run_git(clone, "config", "remote.origin.url", url)
    run_git(clone, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    run_git(clone, *_CLONE_OPTIONS, "fetch", "--quiet", "--prune", "origin", timeout=_FETCH_TIMEOUT)
    try:
        run_git(clone, *_CLONE_OPTIONS, "remote", "set-head", "origin", "--auto")
    except RepositoryGitFailed as error:
        if "exit_code" not in error.details:
            raise  # a timeout; a repository without HEAD is reported when a branch is started from it


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
        return [
            _instance_report(record, facts[record.execution_id].auth_token, seen[record.execution_id])
            for record in records
        ]

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
        directory = line_format.journal_directory(self._storage.state_directory_of(execution_id).path)
        lines, size = [], 0
        remaining: Iterator[dict[str, Any]] = iter(())
        with suppress(OSError):
            remaining = line_format.read_lines(directory, after, epoch or None)
            for line in remaining:
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
        path, branch = (str(worktree.path), worktree.branch) if existed else ("", "")
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
