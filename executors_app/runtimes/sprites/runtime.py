"""Runtime ``sprites``: each session in a Fly.io Sprite, a small machine that pauses while it is idle.

Everything is found by the execution id: the sprite's name, its service (agentctl), and the port on the sprite's own
loopback, which only a tunnel through the Sprites API reaches. The workspace is on the sprite's disk, which outlives
every pause; its branch and snapshots are pushed to the control plane after each turn.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
import tarfile
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from executors_app import workspace_store
from executors_app.client import AgentctlClient
from executors_app.machine.bulk_status import NOT_OURS
from executors_app.machine.git.worktrees import nothing_found, session_refs
from executors_app.machine.storage import ExecutionStorage
from executors_app.runtimes import run_blocking
from executors_app.runtimes.sprites import launch, organisation
from executors_app.runtimes.sprites.launch import (
    SpriteLayout,
    SpritesConfig,
    read_sprites_config,
    read_token,
    shell_quote,
    status_client,
)
from executors_app.runtimes.sprites.organisation import Organisation, Sprite, open_organisation
from executors_app.wire import launch_tokens, line_format
from executors_app.wire.errors import (
    AgentctlForeign,
    AgentctlUnreachable,
    ExecutorError,
    LaunchFailed,
    RepositoryUnusable,
    RuntimeUnavailable,
)
from executors_app.wire.executions import (
    ExecutionFacts,
    Launched,
    LaunchSpec,
    Observation,
    Observed,
    Orphan,
    WorkspaceState,
)
from executors_app.wire.launch_tokens import LAUNCH_KEY, bearer_token, is_token_of, token_state

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


T = TypeVar("T")

log = logging.getLogger(__name__)
_GRACE: Final = 10.0


class Sprites:
    """The runtime; keeps nothing in memory that correctness depends on."""

    name = "sprites"
    isolated = True

    def __init__(self) -> None:
        self._launching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Check the settings; see ``SpritesConfig``."""
        read_sprites_config(config)

    async def check_availability(self, config: Mapping[str, Any]) -> None:
        """Check that the API accepts our token."""
        _config(config)
        async with open_organisation(launch.ASK_TIMEOUT) as api:
            await api.find(f"{organisation.NAME_PREFIX}probe")

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Make the sprite, its workspace and its service, or find them; wakes a paused sprite."""
        layout = SpriteLayout(spec, _config(spec.config))
        # Prevents concurrent launches within this process; the lease prevents those of several processes.
        async with self._launching.setdefault(spec.execution_id, asyncio.Lock()), open_organisation() as api:
            try:
                return await _launch(api, layout, spec)
            except TimeoutError as error:
                raise RuntimeUnavailable("The sprite did not answer in time.") from error

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Every control plane that has the organisation's token can manage its executions."""
        return True

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """List the organisation's sprites once, then poll the agentctl of each sprite that is awake."""
        seen = {one.id: Observation.unknown("runtime_unavailable") for one in executions}
        try:
            async with open_organisation(timeout) as api:
                async with asyncio.timeout(timeout):
                    known = await api.sprites()
                bound = asyncio.Semaphore(concurrency)

                async def judged(execution: ExecutionFacts) -> None:
                    async with bound:
                        layout = SpriteLayout(execution, _config(execution.config))
                        seen[execution.id] = await judge_execution(api, execution, layout, known, timeout)

                for outcome in await asyncio.gather(*map(judged, executions), return_exceptions=True):
                    if isinstance(outcome, Exception):
                        log.warning("a sprite could not be observed: %s", outcome)
        except (TimeoutError, ExecutorError) as error:
            log.warning("cannot observe sprites: %s", error or "the Sprites API does not answer in time")
        return seen

    async def end(self, execution: ExecutionFacts) -> bool:
        """Stop the service after proof by name and label; the sprite is kept and pauses automatically."""
        name = organisation.sprite_name(execution.id)
        try:
            async with open_organisation() as api:
                sprite = await api.find(name)
                if sprite is None or not organisation.is_ours(sprite.labels):
                    return sprite is None
                await api.stop_service(name, organisation.SERVICE, _GRACE)
                return await api.service(name, organisation.SERVICE) in ("", "stopped", "failed")
        except (TimeoutError, ExecutorError) as error:
            log.warning("session %s: its sprite cannot be ended: %s", execution.session_id, error)
            return False

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """Return 0: the next agentctl in the sprite ends leftover processes before it serves."""
        return 0

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """Read it from agentctl's files in the sprite, which this wakes; blocks."""
        return self._left(execution, lambda disk: disk.resume_token(execution.id))

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Read it from agentctl's files in the sprite, which this wakes; blocks."""
        return self._left(execution, lambda disk: disk.unread_journal(execution.id, after, epoch)) or []

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """Ask the running agentctl; if none answers, wake the sprite and read the workspace."""
        if not execution.repository_path or not execution.worktree_path:
            return False
        client = AgentctlClient.of(execution)
        try:
            return await workspace_store.receive_work(execution, client.work)
        except AgentctlUnreachable:
            layout = SpriteLayout(execution, _config(execution.config))
            async with open_organisation() as api:
                return await launch.push_work(api, layout, execution)

    async def orphans(self, known: Collection[str], configs: Collection[Mapping[str, Any]]) -> list[Orphan]:
        """List this deployment's sprites whose execution id is not in ``known``; raises RuntimeUnavailable."""
        async with open_organisation() as api:
            found = await api.sprites()
        return [
            Orphan(id=one.name, execution_id=execution_id, status=one.status)
            for one in found.values()
            if organisation.deployment_label() in one.labels
            and (execution_id := organisation.sprite_execution(one.name)) not in known
        ]

    async def remove_orphan(self, orphan: Orphan, configs: Collection[Mapping[str, Any]]) -> bool:
        """Remove a sprite with its disk, if it is still what was listed."""
        async with open_organisation() as api:
            one = await api.find(orphan.id)
            if one is None:
                return True
            if (
                organisation.deployment_label() not in one.labels
                or organisation.sprite_execution(one.name) != orphan.execution_id
            ):
                return False
            await api.destroy(orphan.id)
            return True

    def _left(self, execution: ExecutionFacts, read: Callable[[ExecutionStorage], T]) -> T | None:
        """Fetch agentctl's state and read it as if it were on this disk."""
        with tempfile.TemporaryDirectory(prefix="kandev-left-") as directory:
            disk = ExecutionStorage(Path(directory))
            into = disk.state_directory_of(execution.id).path
            if run_blocking(fetch_state(execution.id, into)):
                return read(disk)
            return None


RUNTIME: Final = Sprites()


async def _launch(api: Organisation, layout: SpriteLayout, spec: LaunchSpec) -> Launched:
    if not spec.repository_path:
        raise RepositoryUnusable("The task names no repository.")
    sprite = await api.find(layout.name)
    if sprite is None:
        await api.create(layout.name)
    elif not organisation.is_ours(sprite.labels):
        raise LaunchFailed(f"The sprite {layout.name} belongs to another deployment.")
    await launch.install_program(api, layout)  # this wakes the sprite, which restarts its services
    found = await launch.is_service_up(api, layout, spec)
    rebuilt = ""
    if found:
        token = await launch.read_token(api, layout)
    else:
        rebuilt = await launch.make_workspace(api, layout, spec)
        token = await launch.start_service(api, layout, spec)
    if not launch_tokens.is_token_of(token, spec.auth_token):
        raise LaunchFailed("This session's agentctl rejected the control plane: it has another execution's token.")
    boot_id = await launch.wait_until_ready(api, layout, token)
    worktree = layout.worktree
    return Launched(
        url=organisation.sprite_url(spec.execution_id),
        pid=None,
        boot_id=boot_id,
        workspace_path=str(worktree.path),
        worktree_id=spec.session_id,
        worktree_path=str(worktree.path),
        worktree_branch=worktree.branch,
        found=found,
        state={"sprite": layout.name, **launch_tokens.token_state(token)} | ({"rebuilt": rebuilt} if rebuilt else {}),
    )


def _config(config: Mapping[str, Any]) -> SpritesConfig:
    try:
        return read_sprites_config(config)
    except (ValueError, TypeError) as error:
        raise RuntimeUnavailable(f"The settings of this executor are not valid: {error}") from error
