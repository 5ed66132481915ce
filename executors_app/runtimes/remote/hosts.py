"""Client of the ``agentctl host`` daemon: settings, calls, observations, and a watch for silent hosts."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import SplitResult, urlsplit

import aiohttp
from django.conf import settings

from executors_app.backoff import jittered_delay
from executors_app.http_client import HttpClient, tls_trust
from executors_app.machine.bulk_status import read_json
from executors_app.machine.git.workspace_root import MAX_BUNDLE_BYTES, parse_refs
from executors_app.wire.errors import (
    AgentctlForeign,
    AgentctlRefused,
    AgentctlUnreachable,
    ExecutorError,
    LaunchFailed,
    RepositoryUnusable,
    RuntimeUnavailable,
    WorkspaceGone,
)
from executors_app.wire.executions import ExecutionFacts, ExitEvent, Observation, Observed, WorkspaceState
from executors_app.wire.launch_tokens import LAUNCH_KEY, derive_launch_token
from executors_app.wire.protocol import Code

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PIN: Final = re.compile(r"(sha256:)?([0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}")
_GROUP_AND_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The ``Executor.config`` of a remote executor."""

    url: str
    """For example ``https://build1.example:8443``; http only for the loopback."""
    token_file: str
    """Name of a file in ``hosts/`` of the data directory, 0600: the database never holds the token."""
    fingerprint: str = ""
    """SHA-256 of the only trusted certificate; empty: those that this machine trusts."""
    repositories: Mapping[str, str] = field(default_factory=dict)
    """A repository's path or URL on the host, by its path here; repositories that are missing have the same path."""

    def url_of(self, execution_id: str) -> str:
        """Return the URL of an execution's agentctl."""
        return f"{self.url.rstrip('/')}/instances/{execution_id}"

    def token(self, directory: Path) -> str:
        """Return the host's bearer token; raises RuntimeUnavailable."""
        path, named = directory / self.token_file, f"{directory.name}/{self.token_file}"
        try:
            if path.stat().st_mode & _GROUP_AND_OTHERS:
                raise RuntimeUnavailable(f"Other users can read the token file {named}. Run chmod 600 on it.")
            return path.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise RuntimeUnavailable(f"The token file {named} cannot be read: {type(error).__name__}.") from error


def read_host_config(config: Mapping[str, Any]) -> HostConfig:
    """Return the checked settings; raises ValueError with one clear sentence."""
    known = [one.name for one in fields(HostConfig)]
    if unknown := sorted(set(map(str, config)) - set(known)):
        raise ValueError(f"remote has no setting {', '.join(unknown)}. Its settings are {', '.join(known)}.")
    if missing := [name for name in ("url", "token_file") if not config.get(name)]:
        raise ValueError(f"remote requires {' and '.join(missing)}.")
    read = HostConfig(**config)
    _check_url(read.url)
    if not isinstance(read.token_file, str) or not _FILE_NAME.fullmatch(read.token_file):
        raise ValueError("token_file must be the name of a file in hosts/ of the data directory, without a folder.")
    if read.fingerprint and not (isinstance(read.fingerprint, str) and _PIN.fullmatch(read.fingerprint)):
        raise ValueError("fingerprint must be 64 hexadecimal digits: the SHA-256 of the host's certificate.")
    pairs = read.repositories.items() if isinstance(read.repositories, Mapping) else [(None, None)]
    if not all(isinstance(one, str) and one for pair in pairs for one in pair):
        raise ValueError("repositories must be an object that maps each path here to the path or URL there.")
    return read


def _check_url(url: Any) -> None:
    try:
        parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
        good = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.scheme not in {"http", "https"} or not str(url).isprintable() or " " in url:
        raise ValueError("url must be an address such as https://build1.example:8443.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("url must not contain a user, password, query or fragment.")
    if parts.scheme == "http" and not _is_loopback(parts):
        raise ValueError("url must use https for another machine: over http the token could be read on the way.")


def _is_loopback(parts: SplitResult) -> bool:
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return parts.hostname == "localhost"


_LAUNCH_TIMEOUT: Final = 900.0
_END_TIMEOUT: Final = 60.0


class HostClient:
    """Client of one host daemon; raises the errors of ``HttpClient`` unless a method says more."""

    def __init__(self, config: HostConfig, token: str, deployment: str, http: aiohttp.ClientSession | None = None):
        headers = {"Authorization": f"Bearer {token}"}
        trust = tls_trust({"fingerprint": config.fingerprint})
        self._wire = HttpClient(config.url, headers, trust=trust, http=http)
        self._deployment = deployment

    async def host(self, timeout: float) -> dict[str, Any]:
        """Return ``{host_id, version, boot_id}``."""
        return await self._wire.get("/host", timeout=timeout)

    async def instances(self, timeout: float, each: float) -> dict[str, Any]:
        """Return ``{host_id, boot_id, instances}``; each instance has ``each`` seconds to report its status."""
        return await self._wire.get("/instances", {"timeout": f"{each:.3f}"}, timeout=timeout)

    async def create(self, order: Mapping[str, Any], secret: str) -> dict[str, Any]:
        """Make an instance or find it; also raises WorkspaceGone, RepositoryUnusable, LaunchFailed.

        ``secret``: the execution's secret, from which its tokens derive: the token proves to the host that it is ours.
        """
        try:
            return await self._create(order)
        except AgentctlRefused as error:
            launch = _details_of(error).get(LAUNCH_KEY)
            if error.refusal != Code.CONFLICT or not isinstance(launch, str):
                raise _launch_error(error) from error
        # The host has the token of an earlier launch and answered with its nonce: prove that we can derive that token.
        try:
            return await self._create({**order, "earlier_token": derive_launch_token(secret, launch)})
        except AgentctlRefused as error:
            raise _launch_error(error) from error

    async def _create(self, order: Mapping[str, Any]) -> dict[str, Any]:
        body = {**order, "deployment": self._deployment}
        return await self._wire.post("/instances", body, timeout=_LAUNCH_TIMEOUT)

    async def end(self, execution_id: str, session_id: str, *, forget: bool = False) -> bool:
        """End an instance after proof; True when nothing is left of it. ``forget`` removes it from the list."""
        body = {"session_id": session_id, "deployment": self._deployment, "forget": forget}
        answer = await self._wire.post(f"/instances/{execution_id}", body, timeout=_END_TIMEOUT, method="DELETE")
        return answer.get("ended") is True

    async def end_leftovers(self, execution_id: str, session_id: str) -> int:
        """End processes that outlived a dead agentctl, after proof; returns how many."""
        body = {"session_id": session_id, "deployment": self._deployment}
        answer = await self._wire.post(f"/left/{execution_id}/end", body, timeout=_END_TIMEOUT)
        return int(answer.get("ended") or 0)

    async def resume_token(self, execution_id: str) -> str | None:
        """Return the agent's conversation id that a dead agentctl left."""
        token = (await self._wire.get(f"/left/{execution_id}")).get("resume_token")
        if isinstance(token, str) and token:
            return token
        return None

    async def unread_journal(self, execution_id: str, after: int, epoch: str) -> list[dict[str, Any]]:
        """Return the journal lines after a cursor, fetched page by page."""
        lines: list[dict[str, Any]] = []
        more = True
        while more:
            cursor = {"after": str(after), "epoch": epoch}
            page = read_json(200, await self._wire.call("GET", f"/left/{execution_id}/journal", params=cursor))
            lines += page["lines"]
            more = bool(page["more"]) and bool(page["lines"])
            if more:
                after, epoch = lines[-1]["seq"], lines[-1]["epoch"]
        return lines

    async def work(self, execution_id: str, known: Sequence[str], into: IO[bytes]) -> dict[str, str]:
        """Write a git bundle of what ``known`` does not contain; returns the commits of branch and snapshots by ref."""
        path, body = f"/left/{execution_id}/work", {"known": list(known)}
        try:
            answer = await self._wire.download(path, body, into, limit=MAX_BUNDLE_BYTES, timeout=_LAUNCH_TIMEOUT)
        except AgentctlRefused as error:
            raise _launch_error(error) from error
        return parse_refs(answer)


def _launch_error(error: AgentctlRefused) -> Exception:
    """Return the error for a refusal of the host."""
    details = _details_of(error)
    if error.refusal == WorkspaceGone.code:
        return WorkspaceGone(error.message)
    if error.refusal == RepositoryUnusable.code and details.get("permanent", True):
        return RepositoryUnusable(error.message)
    return LaunchFailed(f"The host refused: {error.message}")


def _details_of(error: AgentctlRefused) -> Mapping[str, Any]:
    details = error.details.get("answer", {}).get("details", {})
    if isinstance(details, dict):
        return details
    return {}


def judge_execution(
    execution: ExecutionFacts, listed: Mapping[str, Any] | None, host_id: str, config: HostConfig
) -> Observation:
    """Return the observation of one execution that follows from the host's report."""
    had = execution.state.get("host")
    if listed is None:
        if had and had != host_id:
            return Observation.unknown("other_host")
        return Observation.dead("process_gone", WorkspaceState.REBUILDABLE)
    launch = str(listed.get(LAUNCH_KEY) or "")
    digest = hashlib.sha256(derive_launch_token(execution.auth_token, launch).encode()).hexdigest()
    if (listed["session_id"], listed["token_digest"]) != (execution.session_id, digest):
        return Observation.unknown("foreign")
    match Observed(listed["observed"]):
        case Observed.ALIVE:
            known = {name: value for name, value in execution.state.items() if name != LAUNCH_KEY}
            state = {**known, "host": host_id, **({LAUNCH_KEY: launch} if launch else {})}
            url = config.url_of(execution.id)
            return Observation(Observed.ALIVE, report=listed["report"], url=url, seen_at=datetime.now(UTC), state=state)
        case Observed.DEAD:
            workspace = WorkspaceState(listed["workspace"])
            return Observation.dead(
                str(listed["reason"]), workspace, str(listed["workspace_reason"]), int(listed["leftovers"])
            )
    return Observation.unknown(str(listed["reason"]))


def error_reason(error: Exception) -> str:
    """Return the reason code of an error from a host."""
    if not isinstance(error, ExecutorError):
        return "foreign"
    reason = str(error.details.get("reason", error.code))
    if isinstance(error, AgentctlForeign) and reason != "certificate":
        return "foreign"
    return reason


_WATCH_INTERVAL: Final = 0.15
_WATCH_TIMEOUT: Final = 0.6
"""Share of ``KANDEV_SWEEP_TIMEOUT``, both for the interval between calls and for each answer."""


async def watch_for_silence(ask: Callable[[float], Awaitable[Any]]) -> AsyncIterator[ExitEvent]:
    """Yield an event when the host falls silent and when it answers again; never ends and raises nothing.

    ``ask`` makes one call within the seconds that it is given; raises ExecutorError.
    """
    failures = 0
    while True:
        limit = settings.KANDEV_SWEEP_TIMEOUT
        try:
            await ask(limit * _WATCH_TIMEOUT)
        except AgentctlUnreachable:
            failures += 1
            if failures == 1:
                yield ExitEvent("", silent=True)
        except ExecutorError:
            pass  # something answers there, so it is not silent; sweeps check what it is
        else:
            if failures:
                yield ExitEvent("")
            failures = 0
        await asyncio.sleep(jittered_delay(failures, limit * _WATCH_INTERVAL) if failures else limit * _WATCH_INTERVAL)
