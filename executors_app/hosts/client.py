"""The control plane's end of the wire to ``agentctl host``; what goes to one execution goes through ``client.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

import aiohttp

from executors_app.agentctl.places.answers import read_json
from executors_app.agentctl.places.launch_token import LAUNCH, token_of
from executors_app.agentctl.places.workspace_root import LARGEST_BUNDLE
from executors_app.agentctl.protocol import Code
from executors_app.errors import AgentctlRefused, LaunchFailed, RepositoryUnusable, WorkspaceGone
from executors_app.hosts.config import HostConfig
from executors_app.wire import Wire, trust_of

_LAUNCH_WITHIN: Final = 900.0
_END_WITHIN: Final = 60.0


class HostClient:
    """Speaks to one host daemon; errors are those of ``Wire`` unless a call says more."""

    def __init__(self, config: HostConfig, token: str, deployment: str, http: aiohttp.ClientSession | None = None):
        headers = {"Authorization": f"Bearer {token}"}
        trust = trust_of({"fingerprint": config.fingerprint})
        self._wire = Wire(config.url, headers, trust=trust, http=http)
        self._deployment = deployment

    async def host(self, timeout: float) -> dict[str, Any]:
        """``{host_id, version, boot_id}``."""
        return await self._wire.get("/host", timeout=timeout)

    async def instances(self, timeout: float, each: float) -> dict[str, Any]:
        """``{host_id, boot_id, instances}``, all in one answer; each instance has ``each`` seconds to say how it is."""
        return await self._wire.get("/instances", {"timeout": f"{each:.3f}"}, timeout=timeout)

    async def create(self, order: Mapping[str, Any], secret: str) -> dict[str, Any]:
        """Make an instance or find it; raises WorkspaceGone, RepositoryUnusable, LaunchFailed too.

        ``secret``: what the execution's tokens follow from, which proves to a host that has it that it is ours.
        """
        try:
            return await self._create(order)
        except AgentctlRefused as error:
            launch = _details_of(error).get(LAUNCH)
            if error.refusal != Code.CONFLICT or not isinstance(launch, str):
                raise _launch_error(error) from error
        try:
            return await self._create({**order, "earlier_token": token_of(secret, launch)})
        except AgentctlRefused as error:
            raise _launch_error(error) from error

    async def _create(self, order: Mapping[str, Any]) -> dict[str, Any]:
        body = {**order, "deployment": self._deployment}
        return await self._wire.post("/instances", body, timeout=_LAUNCH_WITHIN)

    async def end(self, execution_id: str, session_id: str, *, forget: bool = False) -> bool:
        """End an instance, on proof; True when nothing is left of it. ``forget``: it is listed no more."""
        body = {"session_id": session_id, "deployment": self._deployment, "forget": forget}
        answer = await self._wire.post(f"/instances/{execution_id}", body, timeout=_END_WITHIN, method="DELETE")
        return answer.get("ended") is True

    async def end_leftovers(self, execution_id: str, session_id: str) -> int:
        """End what outlived a dead agentctl, on proof; how many."""
        body = {"session_id": session_id, "deployment": self._deployment}
        answer = await self._wire.post(f"/left/{execution_id}/end", body, timeout=_END_WITHIN)
        return int(answer.get("ended") or 0)

    async def resume_token(self, execution_id: str) -> str | None:
        """The agent's conversation id that a dead agentctl has left."""
        token = (await self._wire.get(f"/left/{execution_id}")).get("resume_token")
        return token if isinstance(token, str) and token else None

    async def left_journal(self, execution_id: str, after: int, epoch: str) -> list[dict[str, Any]]:
        """The journal behind a cursor, page by page."""
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
        """Write a git bundle of what is not ``known``; the commits of the session's branch and snapshots, by ref."""
        path, body = f"/left/{execution_id}/work", {"known": list(known)}
        try:
            answer = await self._wire.download(path, body, into, limit=LARGEST_BUNDLE, timeout=_LAUNCH_WITHIN)
        except AgentctlRefused as error:
            raise _launch_error(error) from error
        return {str(ref): str(commit) for ref, commit in dict(answer["refs"]).items()}


def _launch_error(error: AgentctlRefused) -> Exception:
    """The error that the host's answer to an order stands for."""
    details = _details_of(error)
    if error.refusal == WorkspaceGone.code:
        return WorkspaceGone(error.message)
    if error.refusal == RepositoryUnusable.code and details.get("permanent", True):
        return RepositoryUnusable(error.message)
    return LaunchFailed(f"The host refused: {error.message}")


def _details_of(error: AgentctlRefused) -> Mapping[str, Any]:
    details = error.details.get("answer", {}).get("details", {})
    return details if isinstance(details, dict) else {}
