"""Decide whether a sprite's execution is alive, dead or unknown, and fetch the state of a dead agentctl."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from executors_app import workspace_store
from executors_app.agentctl.http.bulk_status import NOT_OURS
from executors_app.agentctl.journal import line_format
from executors_app.agentctl.local_runtime.storage import LAUNCH_KEY, bearer_token, is_token_of, token_state
from executors_app.domain import ExecutionFacts, Observation, Observed, WorkspaceState
from executors_app.errors import AgentctlForeign, ExecutorError, LaunchFailed, RuntimeUnavailable
from executors_app.sprites import organisation
from executors_app.sprites.launch import SpriteLayout, read_token, shell_quote, status_client
from executors_app.sprites.organisation import Organisation, Sprite, open_organisation

_MOST_FILES: Final = 10_000
_FILES: Final = re.compile(
    rf"token\.json|journal/(?:{line_format.ASIDE}/[0-9A-Za-z_-]{{1,64}}/)?(?:{line_format.META_FILE}|\d{{20}}\.jsonl)"
)


async def fetch_state(execution_id: str, into: Path) -> bool:
    """Copy ``journal/`` and ``token.json`` of agentctl's state into a directory; False if there is none.

    Wakes the sprite. Raises RuntimeUnavailable, and LaunchFailed for an archive that cannot be read.
    """
    name, state = organisation.sprite_name(execution_id), organisation.sprite_root(execution_id) / "state"
    async with open_organisation() as api:
        sprite = await api.find(name)
        if sprite is None or not organisation.is_ours(sprite.labels):
            return False
        script = (
            'cd "$0" 2>/dev/null && set -- journal && test -e token.json && set -- journal token.json; tar -cf - "$@"'
        )
        try:
            packed = await api.run(name, "sh", "-c", script, str(state))
        except TimeoutError as error:
            raise RuntimeUnavailable("The sprite did not answer in time.") from error
    if packed.exit_code:
        return False
    try:
        _unpack(packed.output, into)
    except (tarfile.TarError, ValueError, OSError) as error:
        raise LaunchFailed(f"agentctl's files in the sprite cannot be read: {error}") from error
    return True


def _unpack(packed: bytes, into: Path) -> None:
    """Write only plain files with names that agentctl uses; the first of each name counts."""
    # "r:" reads no compressed archive, which could unfold to any size.
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        for number, entry in enumerate(archive):
            if number == _MOST_FILES:
                raise ValueError(f"it contains more than {_MOST_FILES} files")
            # A sparse file could claim a size far beyond the bytes that were sent.
            if not entry.isreg() or entry.issparse() or not _FILES.fullmatch(entry.name):
                continue
            source, target = archive.extractfile(entry), into / entry.name
            if source is None or target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read())


log = logging.getLogger(__name__)
_ENDED: Final = frozenset({"stopped", "failed", ""})
"""States of a service that runs no process; empty: it was never defined."""
_NOT_THERE: Final = frozenset({"refused", "closed", "unreachable"})
"""Reasons of a failed poll after which the state of the service decides; others, such as a timeout, prove nothing."""


async def judge_execution(
    api: Organisation, execution: ExecutionFacts, layout: SpriteLayout, known: Mapping[str, Sprite], timeout: float
) -> Observation:
    """Return the observation of one execution; raises only unexpected errors."""
    sprite = known.get(layout.name)
    if sprite is None:
        state, why = await asyncio.to_thread(_removed_workspace, execution, layout)
        return Observation.dead("sprite_gone", state, why)
    if not organisation.is_ours(sprite.labels):
        return Observation.unknown("foreign")
    if sprite.status == "cold":
        return Observation.dead("sprite_cold", _presumed_workspace(execution))
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
            there = await read_token(api, layout) if error.details.get("reason") == NOT_OURS else ""
        if there == token or not is_token_of(there, execution.auth_token):
            raise
        return await status_client(execution.id, there).status(timeout), there


def _presumed_workspace(execution: ExecutionFacts) -> WorkspaceState:
    """Return the workspace's presumed state: the disk outlives pauses, and a launch would notice a loss."""
    return WorkspaceState.PRESENT if execution.worktree_path else WorkspaceState.REBUILDABLE


async def _judge_silent_agent(
    api: Organisation, execution: ExecutionFacts, layout: SpriteLayout, error: ExecutorError, timeout: float
) -> Observation:
    reason = "foreign" if isinstance(error, AgentctlForeign) else str(error.details.get("reason", error.code))
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
    branch = shell_quote([*git, f"refs/heads/{worktree.branch}"])
    script = (
        f"if test -e {shell_quote([worktree.path / '.git'])}; then echo present; elif {branch}; then echo branch; fi"
    )
    ran = await api.run(layout.name, "sh", "-c", script, timeout=10)
    found = ran.output.decode(errors="replace").split()
    if "present" in found:
        return WorkspaceState.PRESENT, ""
    if "branch" in found:
        return WorkspaceState.REBUILDABLE, ""
    lost = f"The worktree {worktree.path} and its branch {worktree.branch} were deleted."
    return await asyncio.to_thread(_lost_workspace, execution, layout, lost)


def _removed_workspace(execution: ExecutionFacts, layout: SpriteLayout) -> tuple[WorkspaceState, str]:
    if not execution.worktree_path:
        return WorkspaceState.REBUILDABLE, ""
    return _lost_workspace(execution, layout, f"The sprite {layout.name} was removed.")


def _lost_workspace(execution: ExecutionFacts, layout: SpriteLayout, lost: str) -> tuple[WorkspaceState, str]:
    if workspace_store.newest_snapshot_time(execution.session_id):
        return WorkspaceState.REBUILDABLE, ""
    return WorkspaceState.GONE, workspace_store.gone_reason(lost, layout.worktree.branch)
