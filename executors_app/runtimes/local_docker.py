"""Sessions in containers of a Docker engine on this machine: one container each, found by its labels.

Everything is found again by the execution id: the container's name and labels, its network, the state directory.
What has to last is on this disk: the worktree, agentctl's journal, the agent's home. That an engine does not
answer proves nothing of its containers: *unknown*, and nothing is stopped, made or removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from django.conf import settings

from executors_app import local_disk
from executors_app.bulk_status import StatusTarget, ask_status, observe_statuses
from executors_app.containers import launch as docker_launch
from executors_app.containers import names as docker_names
from executors_app.containers.config import DockerConfig, read_config
from executors_app.containers.engine import Engine, EngineRefused, connected
from executors_app.containers.launch import Up, url_of
from executors_app.containers.look import ENDED, look
from executors_app.containers.verdict import judge, unknown
from executors_app.domain import ExecutionFacts, Launched, LaunchSpec, Observation, Orphan
from executors_app.errors import (
    AgentctlUnreachable,
    ExecutorError,
    LaunchFailed,
    RuntimeUnavailable,
)
from executors_app.local_disk import KeptOnThisDisk

T = TypeVar("T")

log = logging.getLogger(__name__)
READY_WITHIN: Final = 60.0
_GRACE: Final = 10.0
_POLL: Final = 0.05
_ASK_WITHIN: Final = 5.0


class LocalDocker(KeptOnThisDisk):
    """The runtime; keeps nothing in memory."""

    name = "local_docker"
    isolated = True

    def check_config(self, config: Mapping[str, Any]) -> None:
        """``DockerConfig`` says what there is to set."""
        read_config(config)

    async def check_place(self, config: Mapping[str, Any]) -> None:
        """The engine answers, and has the image."""
        image = _config(config).image or settings.KANDEV_AGENTCTL_IMAGE
        await _with_engine(lambda engine: engine.image_id(image), _ASK_WITHIN)

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Make the worktree and bring the container up, or find both."""
        config = _config(spec.config)
        worktree = await asyncio.to_thread(local_disk.make_worktree, spec)
        try:
            up = await _with_engine(lambda engine: docker_launch.bring_up(engine, spec, worktree, config))
        except OSError as error:
            raise LaunchFailed(f"The container could not be prepared: {error}") from error
        url, boot_id = await _wait_until_ready(spec, up)
        engine_id = await _with_engine(Engine.identity)
        return Launched(
            url=url,
            pid=None,
            boot_id=boot_id,
            workspace_path=str(worktree.path),
            worktree_id=spec.session_id,
            worktree_path=str(worktree.path),
            worktree_branch=worktree.branch,
            found=up.found,
            container_id=up.container.id,
            state={"container": up.container.id, "image": up.container.image, "engine": engine_id},
        )

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """One list of the engine's containers, then every running one's agentctl."""
        try:
            async with asyncio.timeout(timeout):
                known = await _with_engine(lambda engine: look(engine, executions), timeout)
        except (TimeoutError, ExecutorError) as error:
            log.warning("no look at containers: %s", error or "the Docker engine does not answer in time")
            return {one.id: unknown("runtime_unavailable") for one in executions}
        targets = [
            StatusTarget(one.id, url, one.auth_token)
            for one in executions
            if (url := url_of(known.containers.get(one.id)))
        ]
        answers = await observe_statuses(targets, timeout, concurrency)
        bound = asyncio.Semaphore(concurrency)

        async def judged(one: ExecutionFacts) -> Observation:
            async with bound:
                return await judge(one, known, answers.get(one.id))

        return dict(zip([one.id for one in executions], await asyncio.gather(*map(judged, executions)), strict=True))

    async def end(self, execution: ExecutionFacts) -> bool:
        """TERM, then KILL, on the proof of name and labels; the container is kept, its addresses are given back."""
        try:
            return await _with_engine(lambda engine: _end(engine, execution))
        except ExecutorError as error:
            log.warning("session %s: its container cannot be ended: %s", execution.session_id, error.message)
            return False

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """Nothing outlives a container: its processes end with it."""
        return 0

    async def orphans(self, known: Collection[str]) -> list[Orphan]:
        """Containers of this deployment whose execution id is not among ``known``; raises RuntimeUnavailable."""
        found = await _with_engine(lambda engine: engine.containers(docker_names.ours()))
        return [
            Orphan(id=one.name, execution_id=execution_id, status=one.status)
            for one in found
            if (execution_id := one.labels.get(docker_names.EXECUTION, "")) not in known
        ]

    async def remove_orphan(self, orphan: Orphan) -> bool:
        """Stop and remove one, if it still is what it was listed as; worktree and journal stay. RuntimeUnavailable."""
        return await _with_engine(lambda engine: _remove(engine, orphan))


RUNTIME: Final = LocalDocker()


async def _with_engine(call: Callable[[Engine], T], timeout: float = READY_WITHIN) -> T:
    """Do something with the engine, in a thread."""

    def run() -> T:
        with connected(settings.KANDEV_DOCKER_HOST, timeout) as engine:
            return call(engine)

    return await asyncio.to_thread(run)


def _config(config: Mapping[str, Any]) -> DockerConfig:
    try:
        return read_config(config)
    except (ValueError, TypeError) as error:
        raise RuntimeUnavailable(f"The settings of this executor are refused: {error}") from error


async def _wait_until_ready(spec: LaunchSpec, up: Up) -> tuple[str, str]:
    """Where agentctl answered as ours, and its boot id; the port is read anew until then."""
    deadline, url, problem = time.monotonic() + READY_WITHIN, up.url, "no port is published"
    name = docker_names.name_of(spec.execution_id)
    while time.monotonic() < deadline:
        if url:
            try:
                status = await ask_status(StatusTarget(spec.execution_id, url, spec.auth_token), _ASK_WITHIN)
                return url, str(status.get("boot_id", ""))
            except AgentctlUnreachable as error:
                problem = error.message
            except ExecutorError as error:
                raise LaunchFailed(f"The agentctl of this session does not accept us: {error.message}") from error
        await asyncio.sleep(_POLL)
        url = await _with_engine(lambda engine: _still_running(engine, name))
    raise LaunchFailed(f"agentctl was not ready within {READY_WITHIN:g} s: {problem}")


def _still_running(engine: Engine, name: str) -> str:
    container = engine.find(name)
    if container is None:
        raise LaunchFailed(f"The container {name} was removed while it was starting.")
    if container.status in ENDED:
        why = "out of memory" if container.out_of_memory else f"exit code {container.exit_code}"
        raise LaunchFailed(f"The container ended at its start ({why}): {engine.last_words(container.id)}")
    return url_of(container) or ""


def _end(engine: Engine, execution: ExecutionFacts) -> bool:
    name = docker_names.name_of(execution.id)
    container = engine.find(name)
    if container is None:
        return True
    if not docker_names.is_owned(container.labels, execution.id, execution.session_id):
        return False
    if container.status == "paused":
        engine.unpause(container.id)
    engine.stop(container.id, _GRACE)
    left = engine.find(name)
    if left is not None and left.status not in ENDED:
        return False
    engine.drop_network(name, container.id)
    return True


def _remove(engine: Engine, orphan: Orphan) -> bool:
    container = engine.find(orphan.id)
    if container is None:
        return True
    proof = {**docker_names.ours(), docker_names.EXECUTION: orphan.execution_id}
    if not proof.items() <= container.labels.items() or not orphan.execution_id:
        return False
    engine.stop(container.id, _GRACE)
    engine.drop_network(container.name, container.id)
    try:
        engine.remove(container.id)
    except EngineRefused:
        return False
    return True
