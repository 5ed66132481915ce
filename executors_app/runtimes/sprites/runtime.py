"""Runtime ``sprites``: each session in a Fly.io Sprite, a small machine that pauses while it is idle.

Everything is found by the execution id: the sprite's name, its service (agentctl), and the port on the sprite's own
loopback, which only a tunnel through the Sprites API reaches. The workspace is on the sprite's disk, which outlives
every pause; its branch and snapshots are pushed to the control plane after each turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.repositories import workspace_store
from executors_app.runtimes.fetched_state import read_fetched_state
from executors_app.runtimes.sprites import launch, organisation
from executors_app.runtimes.sprites.config import SpritesConfig, read_sprites_config
from executors_app.runtimes.sprites.layout import SpriteLayout
from executors_app.runtimes.sprites.observation import judge_sprite
from executors_app.runtimes.sprites.organisation import Organisation, open_organisation
from executors_app.runtimes.sprites.state_files import fetch_state
from executors_app.wire import launch_tokens
from executors_app.wire.errors import (
    AgentctlUnreachable,
    ExecutorError,
    LaunchFailed,
    RepositoryUnusable,
    RuntimeUnavailable,
)
from executors_app.wire.executions import ExecutionFacts, Launched, LaunchSpec, Observation, Orphan

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
                        seen[execution.id] = await judge_sprite(api, execution, layout, known, timeout)

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
        fetch = partial(fetch_state, execution.id)
        return read_fetched_state(execution, fetch, lambda disk: disk.resume_token(execution.id))

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Read it from agentctl's files in the sprite, which this wakes; blocks."""
        fetch = partial(fetch_state, execution.id)
        found = read_fetched_state(execution, fetch, lambda disk: disk.unread_journal(execution.id, after, epoch))
        return found or []

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
        orphans = []
        for sprite in found.values():
            execution_id = organisation.sprite_execution(sprite.name)
            if organisation.deployment_label() in sprite.labels and execution_id not in known:
                orphans.append(Orphan(id=sprite.name, execution_id=execution_id, status=sprite.status))
        return orphans

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
    state = {"sprite": layout.name, **launch_tokens.token_state(token)}
    if rebuilt:
        state["rebuilt"] = rebuilt
    return Launched(
        url=organisation.sprite_url(spec.execution_id),
        pid=None,
        boot_id=boot_id,
        workspace_path=str(worktree.path),
        worktree_id=spec.session_id,
        worktree_path=str(worktree.path),
        worktree_branch=worktree.branch,
        found=found,
        state=state,
    )


def _config(config: Mapping[str, Any]) -> SpritesConfig:
    try:
        return read_sprites_config(config)
    except (ValueError, TypeError) as error:
        raise RuntimeUnavailable(f"The settings of this executor are not valid: {error}") from error
