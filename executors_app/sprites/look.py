"""What a list of the organisation's sprites, and the answers of those that are awake, say: alive, dead or unknown.

A cold sprite's processes are gone, which its status proves without anybody being woken; a warm one's are frozen, and
to ask thaws them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from executors_app import workspace_store
from executors_app.agentctl.places.answers import NOT_OURS
from executors_app.agentctl.places.launch_token import LAUNCH, bearer_of, is_of, noted
from executors_app.domain import ExecutionFacts, Observation, Observed, WorkspaceState
from executors_app.errors import AgentctlForeign, ExecutorError
from executors_app.sprites import names
from executors_app.sprites.api import Organisation, Sprite
from executors_app.sprites.launch import Inside, client_of, quoted, token_in

log = logging.getLogger(__name__)
_ENDED: Final = frozenset({"stopped", "failed", ""})
"""States of a service that runs no process; empty: it was never defined."""
_NOT_THERE: Final = frozenset({"refused", "closed", "unreachable"})


async def judge(
    api: Organisation, one: ExecutionFacts, inside: Inside, known: Mapping[str, Sprite], timeout: float
) -> Observation:
    """Of one execution; raises nothing but what is unexpected."""
    sprite = known.get(inside.name)
    if sprite is None:
        state, why = await asyncio.to_thread(_of_the_removed, one, inside)
        return _seen(Observed.DEAD, "sprite_gone", workspace=state, workspace_reason=why)
    if not names.is_ours(sprite.labels):
        return unknown("foreign")
    if sprite.status == "cold":
        return _seen(Observed.DEAD, "sprite_cold", workspace=_as_launched(one))
    try:
        report, token = await _report(api, one, inside, timeout)
    except ExecutorError as error:
        return await _of_the_silent(api, one, inside, error, timeout)
    kept = {name: value for name, value in one.state.items() if name != LAUNCH} | noted(token)
    return _seen(Observed.ALIVE, report=report, url=names.url_of(one.id), state=kept)


async def _report(
    api: Organisation, one: ExecutionFacts, inside: Inside, timeout: float
) -> tuple[Mapping[str, Any], str]:
    """The status, and with which token it was had: that of the row, or of a launch that the row does not know."""
    token = bearer_of(one.auth_token, one.state)
    try:
        return await client_of(one.id, token).status(timeout), token
    except AgentctlForeign as error:
        async with asyncio.timeout(timeout):
            there = await token_in(api, inside) if error.details.get("reason") == NOT_OURS else ""
        if there == token or not is_of(there, one.auth_token):
            raise
        return await client_of(one.id, there).status(timeout), there


def unknown(reason: str) -> Observation:
    """Neither alive nor proven dead."""
    return _seen(Observed.UNKNOWN, reason)


def _seen(observed: Observed, reason: str = "", **more: Any) -> Observation:
    return Observation(observed, reason, seen_at=datetime.now(UTC), **more)


def _as_launched(one: ExecutionFacts) -> WorkspaceState:
    """The disk outlives every pause; what was lost on it all the same the launch will say."""
    return WorkspaceState.PRESENT if one.worktree_path else WorkspaceState.REBUILDABLE


async def _of_the_silent(
    api: Organisation, one: ExecutionFacts, inside: Inside, error: ExecutorError, timeout: float
) -> Observation:
    reason = "foreign" if isinstance(error, AgentctlForeign) else str(error.details.get("reason", error.code))
    if reason not in _NOT_THERE:
        return unknown(reason)
    try:
        async with asyncio.timeout(timeout):
            service = await api.service(inside.name, names.SERVICE)
            if service not in _ENDED:
                return unknown(reason)
            state, why = await _workspace(api, one, inside)
    except (TimeoutError, ExecutorError) as problem:
        log.info("session %s: its sprite does not say more: %s", one.session_id, problem)
        return unknown(reason)
    return _seen(Observed.DEAD, f"service_{service or 'missing'}", workspace=state, workspace_reason=why)


async def _workspace(api: Organisation, one: ExecutionFacts, inside: Inside) -> tuple[WorkspaceState, str]:
    """As it is on the disk of a sprite that is awake."""
    if not one.worktree_path:
        return WorkspaceState.REBUILDABLE, ""
    worktree = inside.worktree
    git = ["git", f"--git-dir={inside.work}/repository.git", "rev-parse", "--verify", "--quiet"]
    branch = quoted([*git, f"refs/heads/{worktree.branch}"])
    script = f"if test -e {quoted([worktree.path / '.git'])}; then echo present; elif {branch}; then echo branch; fi"
    ran = await api.run(inside.name, "sh", "-c", script, timeout=10)
    found = ran.output.decode(errors="replace").split()
    if "present" in found:
        return WorkspaceState.PRESENT, ""
    if "branch" in found:
        return WorkspaceState.REBUILDABLE, ""
    lost = f"The worktree {worktree.path} and its branch {worktree.branch} were deleted."
    return await asyncio.to_thread(_of_the_lost, one, inside, lost)


def _of_the_removed(one: ExecutionFacts, inside: Inside) -> tuple[WorkspaceState, str]:
    if not one.worktree_path:
        return WorkspaceState.REBUILDABLE, ""
    return _of_the_lost(one, inside, f"The sprite {inside.name} was removed.")


def _of_the_lost(one: ExecutionFacts, inside: Inside, lost: str) -> tuple[WorkspaceState, str]:
    if workspace_store.arrived_at(one.session_id):
        return WorkspaceState.REBUILDABLE, ""
    return WorkspaceState.GONE, workspace_store.reason_gone(lost, inside.worktree.branch)
