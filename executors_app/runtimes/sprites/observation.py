"""Observe executions in sprites without waking a cold one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from executors_app.machine.agentctl_answers import NOT_OURS
from executors_app.machine.git.worktrees import nothing_found, session_refs
from executors_app.repositories import workspace_store
from executors_app.runtimes.sprites import organisation
from executors_app.runtimes.sprites.launch import read_token, shell_quote, status_client
from executors_app.runtimes.sprites.layout import SpriteLayout
from executors_app.runtimes.sprites.organisation import Organisation, Sprite
from executors_app.wire.errors import AgentctlForeign, ExecutorError
from executors_app.wire.executions import ExecutionFacts, Observation, Observed, WorkspaceState
from executors_app.wire.launch_tokens import LAUNCH_KEY, bearer_token, is_token_of, token_state

log = logging.getLogger(__name__)

_ENDED: Final = frozenset({"stopped", "failed", ""})
"""States of a service that runs no process; empty: it was never defined."""
_NOT_THERE: Final = frozenset({"refused", "closed", "unreachable"})
"""Reasons of a failed poll after which the state of the service decides; others, such as a timeout, prove nothing."""


async def judge_sprite(
    api: Organisation, execution: ExecutionFacts, layout: SpriteLayout, known: Mapping[str, Sprite], timeout: float
) -> Observation:
    """Return the observation of one execution; raises only unexpected errors."""
    sprite = known.get(layout.name)
    if sprite is None:
        lost = f"The sprite {layout.name} was removed."
        state, why = await asyncio.to_thread(_lost_workspace, execution, layout, lost)
        return Observation.dead("sprite_gone", state, why)
    if not organisation.is_ours(sprite.labels):
        return Observation.unknown("foreign")
    if sprite.status == "cold":
        # The disk outlives pauses, and a launch would notice a loss.
        if execution.worktree_path:
            presumed = WorkspaceState.PRESENT
        else:
            presumed = WorkspaceState.REBUILDABLE
        return Observation.dead("sprite_cold", presumed)
    try:
        report, token = await _poll_status(api, execution, layout, timeout)
    except ExecutorError as error:
        return await _judge_silent_agent(api, execution, layout, error, timeout)
    kept = {name: value for name, value in execution.state.items() if name != LAUNCH_KEY} | token_state(token)
    url = organisation.sprite_url(execution.id)
    return Observation(Observed.ALIVE, report=report, url=url, seen_at=datetime.now(UTC), state=kept)


async def _poll_status(
    api: Organisation, execution: ExecutionFacts, layout: SpriteLayout, timeout: float
) -> tuple[Mapping[str, Any], str]:
    """Return the status and the token that was accepted: the row's, or that of a launch that the row does not know."""
    token = bearer_token(execution.auth_token, execution.state)
    try:
        return await status_client(execution.id, token).status(timeout), token
    except AgentctlForeign as error:
        async with asyncio.timeout(timeout):
            if error.details.get("reason") == NOT_OURS:
                there = await read_token(api, layout)
            else:
                there = ""
        if there == token or not is_token_of(there, execution.auth_token):
            raise
        return await status_client(execution.id, there).status(timeout), there


async def _judge_silent_agent(
    api: Organisation, execution: ExecutionFacts, layout: SpriteLayout, error: ExecutorError, timeout: float
) -> Observation:
    if isinstance(error, AgentctlForeign):
        reason = "foreign"
    else:
        reason = str(error.details.get("reason", error.code))
    if reason not in _NOT_THERE:
        return Observation.unknown(reason)
    try:
        async with asyncio.timeout(timeout):
            service = await api.service(layout.name, organisation.SERVICE)
            if service not in _ENDED:
                return Observation.unknown(reason)
            state, why = await _workspace(api, execution, layout)
    except (TimeoutError, ExecutorError) as problem:
        log.info("session %s: its sprite gave no further information: %s", execution.session_id, problem)
        return Observation.unknown(reason)
    return Observation.dead(f"service_{service or 'missing'}", state, why)


async def _workspace(api: Organisation, execution: ExecutionFacts, layout: SpriteLayout) -> tuple[WorkspaceState, str]:
    """Return the workspace's state as found on the disk of a sprite that is awake."""
    if not execution.worktree_path:
        return WorkspaceState.REBUILDABLE, ""
    worktree = layout.worktree
    git = ["git", f"--git-dir={layout.work}/repository.git", "rev-parse", "--verify", "--quiet"]
    refs = session_refs(execution.session_id, worktree.branch)
    known = " || ".join(shell_quote([*git, ref]) for ref in refs)
    script = (
        f"if test -e {shell_quote([worktree.path / '.git'])}; then echo present; elif {known}; then echo branch; fi"
    )
    ran = await api.run(layout.name, "sh", "-c", script, timeout=10)
    found = ran.output.decode(errors="replace").split()
    if "present" in found:
        return WorkspaceState.PRESENT, ""
    if "branch" in found:
        return WorkspaceState.REBUILDABLE, ""
    lost = nothing_found(worktree)
    return await asyncio.to_thread(_lost_workspace, execution, layout, lost)


def _lost_workspace(execution: ExecutionFacts, layout: SpriteLayout, lost: str) -> tuple[WorkspaceState, str]:
    if not execution.worktree_path:
        return WorkspaceState.REBUILDABLE, ""
    return workspace_store.lost_workspace_state(execution.session_id, lost, layout.worktree.branch)
