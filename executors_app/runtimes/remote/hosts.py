"""Client of the ``agentctl host`` daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

import aiohttp

from executors_app.agentctl_client.client import HttpClient, tls_trust
from executors_app.machine.agentctl_answers import read_json
from executors_app.machine.git.workspace_root import MAX_BUNDLE_BYTES, parse_refs
from executors_app.runtimes.remote.config import HostConfig
from executors_app.wire.errors import AgentctlRefused, LaunchFailed, RepositoryUnusable, WorkspaceGone
from executors_app.wire.launch_tokens import LAUNCH_KEY, derive_launch_token
from executors_app.wire.protocol import Code

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
