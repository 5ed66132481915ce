"""The instances of one host.

Create, observe and end them, and find the repositories that the host's operator allows. Each instance outlives the
daemon.
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
from executors_app.agentctl.http.sockets import AgentctlListener
from executors_app.agentctl.journal import line_format
from executors_app.agentctl.local_runtime import launch
from executors_app.agentctl.local_runtime.machine import LocalMachine
from executors_app.agentctl.local_runtime.storage import ExecutionStorage, launch_nonce
from executors_app.agentctl.protocol import ApiError, Code
from executors_app.agentctl.workspace import workspace_root, worktrees
from executors_app.agentctl.workspace.repository_git import RepositoryGitFailed, run_git
from executors_app.domain import Launched, LaunchSpec, Observation
from executors_app.errors import RepositoryUnusable, WorkspaceGone

_URL: Final = re.compile(r"(https?|ssh|git|file)://[\x21-\x7e]+")
_FETCH_TIMEOUT: Final = 600.0
_CLONE_OPTIONS: Final = ("-c", "protocol.ext.allow=never", "-c", "http.followRedirects=false")
"""A URL may neither name a program to run nor lead to another place than the one that was allowed."""
_PARENT_REFERENCE: Final = re.compile(r"\.\.|%2[ef]", re.IGNORECASE)
_REMOTE_HEAD: Final = "origin/HEAD"


class AllowedRepositories:
    """What ``--repositories`` allows: absolute folders, and beginnings of URLs that end at a slash or at the end."""

    def __init__(self, allowed: Sequence[str], root: Path):
        self._urls = [one for one in allowed if _URL.fullmatch(one)]
        self._folders = [Path(one) for one in allowed if one not in self._urls]
        if wrong := [str(folder) for folder in self._folders if not folder.is_absolute()]:
            raise ValueError(f"--repositories: {', '.join(wrong)} is neither an absolute folder nor a URL")
        self._clones = root / "repositories"
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    def find(self, repository: str, base: str, *, existed: bool) -> tuple[Path, str]:
        """The repository here and the branch to start from; blocks while a clone is brought up to date.

        ``existed``: there was a worktree of it, so nothing new is needed of the other end, and a lost
        clone is not replaced by a fresh one. Raises RepositoryUnusable, GitFailed, WorkspaceGone.
        """
        if not repository:
            raise RepositoryUnusable("The task names no repository.")
        if _URL.fullmatch(repository):
            return self._cloned(repository, existed=existed), base or _REMOTE_HEAD
        return self._folder(repository), base

    def _folder(self, repository: str) -> Path:
        try:
            if not Path(repository).is_absolute():
                raise RepositoryUnusable("An absolute path or a URL of a repository is wanted.")
            path = Path(repository).resolve()
            allowed = any(path.is_relative_to(folder.resolve()) for folder in self._folders)
        except (OSError, ValueError, RuntimeError) as error:
            raise RepositoryUnusable("This cannot be a path.") from error
        if not allowed:
            raise RepositoryUnusable(f"The host opens no repository at {repository}: start it with --repositories.")
        return path

    def _cloned(self, url: str, *, existed: bool) -> Path:
        if not any(
            url == one or url.startswith(one.rstrip("/") + "/") for one in self._urls
        ) or _PARENT_REFERENCE.search(url):
            raise RepositoryUnusable("The host opens no repository at this URL: start it with --repositories.")
        if urlsplit(url).password:
            raise RepositoryUnusable("A URL with a password in it is refused: log git in on the host instead.")
        clone = self._clones / f"{hashlib.sha256(url.encode()).hexdigest()[:24]}.git"
        if existed and not clone.is_dir():
            raise WorkspaceGone("The host has lost its clone of the repository, and the session's branch with it.")
        if not existed:
            with self._locks[clone]:
                _update_clone(clone, url)
        return clone


def _update_clone(clone: Path, url: str) -> None:
    """Every step may be the first that an earlier, killed host did not make."""
    clone.mkdir(parents=True, exist_ok=True, mode=0o700)
    run_git(clone, "init", "--quiet", "--bare")
    run_git(clone, "config", "remote.origin.url", url)
    run_git(clone, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    run_git(clone, *_CLONE_OPTIONS, "fetch", "--quiet", "--prune", "origin", timeout=_FETCH_TIMEOUT)
    try:
        run_git(clone, *_CLONE_OPTIONS, "remote", "set-head", "origin", "--auto")
    except RepositoryGitFailed as error:
        if "exit_code" not in error.details:
            raise  # no answer in time; a repository without a HEAD is said by whoever needs one


_MAX_CONCURRENT_POLLS: Final = 64
_PAGE_BYTES: Final = 8 << 20


class InstanceManager:
    """All instances under one root directory."""

    def __init__(self, root: Path, sources: AllowedRepositories):
        self.host_id = load_host_id(root)
        self._disk = ExecutionStorage(root)
        self._machine = LocalMachine(self._disk, mints=False)
        self._records = InstanceRecords(self._disk)
        self._sources = sources
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, order: InstanceOrder) -> dict[str, Any]:
        """Make the workspace and start agentctl, or find what an earlier order of the same ids has left.

        Raises Refused for another's ids; WorkspaceGone, RepositoryUnusable, LaunchFailed.
        """
        async with self._locks.setdefault(order.execution_id, asyncio.Lock()):
            record, spec = await asyncio.to_thread(self._prepare, order)
            launched = await self._machine.launch(spec)
            await asyncio.to_thread(self._records.keep, record.launched(launched))
            token = self._records.token_of(order.execution_id)
        return _launch_report(launched, token)

    async def look(self, timeout: float) -> list[dict[str, Any]]:
        """Every instance with what one look at it came to; each has ``timeout`` seconds of its own."""
        records = await asyncio.to_thread(self._records.all)
        facts = {one.execution_id: self._records.facts_of(one) for one in records}
        seen = await self._machine.observe(list(facts.values()), timeout=timeout, concurrency=_MAX_CONCURRENT_POLLS)
        return [_instance_report(one, facts[one.execution_id].auth_token, seen[one.execution_id]) for one in records]

    async def end(self, execution_id: str, proof: OwnershipProof) -> bool:
        """TERM, then KILL agentctl and what it has left, on proof; True when nothing is left."""
        record = self._owned(execution_id, proof)
        return await self._machine.end(self._records.facts_of(record))

    async def end_leftovers(self, execution_id: str, proof: OwnershipProof) -> int:
        """KILL what outlived a dead agentctl; returns how many."""
        record = self._owned(execution_id, proof)
        return await self._machine.end_leftovers(self._records.facts_of(record))

    async def forget(self, execution_id: str, proof: OwnershipProof) -> bool:
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
        directory = line_format.journal_directory(self._disk.places_of(execution_id).path)
        lines, size = [], 0
        left: Iterator[dict[str, Any]] = iter(())
        with suppress(OSError):
            left = line_format.read_lines(directory, after, epoch or None)
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
            packed = workspace_root.pack_work(Path(record.repository), worktree, known, bundle)
        except BaseException:
            bundle.close()
            raise
        bundle.seek(0)
        return packed, bundle

    def admits(self, execution_id: str, bearer: bytes) -> bool:
        """Whether that is the token of this instance."""
        token = self._records.token_of(execution_id).encode()
        return hmac.compare_digest(bearer, token) and bool(token)

    def listener_of(self, execution_id: str) -> AgentctlListener:
        """Where its agentctl listens; Refused where none lives, so that no stranger there gets the token."""
        listener = launch.find_listener(self._disk.places_of(execution_id), execution_id)
        if listener is None:
            raise ApiError(Code.INSTANCE_UNREACHABLE, "the agentctl of this instance does not run")
        return listener

    def _prepare(self, order: InstanceOrder) -> tuple[InstanceRecord, LaunchSpec]:
        """Whose it is, which repository, and a record of it before anything is made."""
        known = self._records.find(order.execution_id)
        if known is not None and (known.session_id, known.deployment) != (order.session_id, order.deployment):
            raise ApiError(Code.CONFLICT, "this execution belongs to another session")
        token = self._records.token_of(order.execution_id)
        if token not in {"", order.token, order.earlier_token}:
            # Whoever has the secret that the token follows from can tell it by this.
            raise ApiError(Code.CONFLICT, "this execution has another token", launch=launch_nonce(token))
        place = worktrees.session_worktree(self._disk.root, order.session_id)
        if order.worktree_path and (order.worktree_path, order.worktree_branch) != (str(place.path), place.branch):
            raise ApiError(Code.CONFLICT, f"the worktree {order.worktree_path} is not of this host")
        existed = bool(order.worktree_path or (known and known.worktree_path))
        repository, base = self._sources.find(order.repository, order.base_branch, existed=existed)
        ids = (order.execution_id, order.session_id, order.task_id)
        record = known or InstanceRecord(*ids, order.deployment, str(repository), base)
        record = replace(record, repository=str(repository), base_branch=base)
        self._records.keep(record)
        path, branch = (str(place.path), place.branch) if existed else ("", "")
        spec = LaunchSpec(*ids, str(repository), base, order.token, worktree_path=path, worktree_branch=branch)
        return record, spec

    def _known(self, execution_id: str) -> InstanceRecord:
        record = self._records.find(execution_id)
        if record is None:
            raise ApiError(Code.NOT_FOUND, "there is no such instance")
        return record

    def _owned(self, execution_id: str, proof: OwnershipProof) -> InstanceRecord:
        record = self._known(execution_id)
        if (record.session_id, record.deployment) != (proof.session_id, proof.deployment):
            raise ApiError(Code.CONFLICT, "this instance is another's; nothing was done about it")
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
