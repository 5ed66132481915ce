"""Base class of the Docker runtimes: one container per session, found by its labels.

An engine that does not answer proves nothing about its containers: they are *unknown*, and nothing is stopped,
created or removed. Engines are observed concurrently, so a silent one delays only its own sessions.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import IO, Any, Final

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine.agentctl_answers import NOT_OURS
from executors_app.machine.bulk_status import StatusTarget, poll_status, poll_statuses
from executors_app.machine.git import workspace_root
from executors_app.repositories import workspace_store
from executors_app.repositories.workspace_store import state_directory_of
from executors_app.runtimes.containers import archives, exit_events, launch, lifecycle, sites
from executors_app.runtimes.containers.connection import EngineAddress
from executors_app.runtimes.containers.container import ENDED_STATUSES
from executors_app.runtimes.containers.engine import Engine
from executors_app.runtimes.containers.engine_threads import READY_TIMEOUT, call_engine, call_for_workspace
from executors_app.runtimes.containers.helper import HelperContainer
from executors_app.runtimes.containers.launch import RunningContainer, container_url, image_name
from executors_app.runtimes.containers.observation import ContainerListing, judge_container, list_containers
from executors_app.runtimes.containers.sites import Site
from executors_app.wire import launch_tokens
from executors_app.wire.errors import (
    AgentctlForeign,
    AgentctlUnreachable,
    ExecutorError,
    LaunchFailed,
    RuntimeUnavailable,
    WorkspaceGone,
)
from executors_app.wire.executions import ExecutionFacts, ExitEvent, Launched, LaunchSpec, Observation, Orphan
from executors_app.wire.launch_tokens import LAUNCH_KEY

log = logging.getLogger(__name__)

WORKSPACE_TIMEOUT: Final = 600.0
"""Seconds that agentctl may take to make the workspace before it listens."""
_POLL: Final = 0.05
_ASK_TIMEOUT: Final = 5.0
_LIST_TIMEOUT: Final = 10.0


class DockerRuntime(ABC):
    """Base class; keeps no state in memory."""

    name: str
    isolated = True

    @abstractmethod
    def read(self, config: Mapping[str, Any]) -> Site:
        """Return the site for an executor's settings; raises ValueError with one clear sentence."""

    @abstractmethod
    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Whether this process can manage the execution."""

    @abstractmethod
    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """Return the conversation id that a dead agentctl left."""

    @abstractmethod
    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Return the journal lines of a dead agentctl after a cursor."""

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError for invalid settings."""
        self.read(config)

    def site(self, config: Mapping[str, Any]) -> Site:
        """Return the site; raises RuntimeUnavailable for invalid settings."""
        try:
            return self.read(config)
        except (ValueError, TypeError) as error:
            raise RuntimeUnavailable(f"The settings of this executor are not valid: {error}") from error

    def addresses(self, configs: Iterable[Mapping[str, Any]]) -> set[EngineAddress]:
        """Return the engines of these executors; raises RuntimeUnavailable."""
        return {self.site(config).address for config in configs}

    async def check_availability(self, config: Mapping[str, Any]) -> None:
        """Check that the engine answers and has the image."""
        site = self.site(config)
        await call_engine(site.address, lambda engine: engine.image_id(image_name(site.config)), _ASK_TIMEOUT)

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Make the workspace and start the container, or find both."""
        site = self.site(spec.config)
        try:
            up = await _ensure_container(site, spec)
            url, boot_id = await _wait_until_ready(site, spec, up)
        except WorkspaceGone as error:
            # The first seed assumed that the workspace exists and carries no objects. As it is lost, a second
            # launch rebuilds it from what has arrived, or raises that the loss is final.
            up = await _ensure_container(site, spec, error.message)
            url, boot_id = await _wait_until_ready(site, spec, up)
        if up.found:
            await AgentctlClient(url, up.setup.token, spec.execution_id).ensure_workspace()
        engine_id = await call_engine(site.address, Engine.identity)
        path, branch = str(up.setup.worktree.path), up.setup.worktree.branch
        state = {"container": up.container.id, "image": up.container.image, "engine": engine_id}
        state |= launch_tokens.token_state(up.setup.token)
        if up.setup.rebuilt:
            state["rebuilt"] = up.setup.rebuilt
        return Launched(
            url=url,
            pid=None,
            boot_id=boot_id,
            workspace_path=path,
            worktree_id=spec.worktree_owner,
            worktree_path=path,
            worktree_branch=branch,
            found=up.found,
            container_id=up.container.id,
            state=state,
        )

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """List each engine's containers once, then poll the agentctl of each that runs."""
        seen = {one.id: Observation.unknown("runtime_unavailable") for one in executions}
        places: dict[Site, list[ExecutionFacts]] = defaultdict(list)
        for one in executions:
            try:
                places[self.site(one.config)].append(one)
            except RuntimeUnavailable as error:
                log.warning("session %s: %s", one.session_id, error.message)
        observations = [_observe(site, of_site, timeout, concurrency) for site, of_site in places.items()]
        for found in await asyncio.gather(*observations):
            seen |= found
        return seen

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """Ask the running agentctl; if none answers, read the workspace in a helper container."""
        if not execution.repository_path or not execution.worktree_path:
            return False
        client = AgentctlClient.of(execution)
        try:
            return await workspace_store.receive_work(execution, client.work)
        except AgentctlUnreachable:
            site = self.site(execution.config)
            return await workspace_store.receive_work(execution, partial(_read_work, site, execution))

    async def end(self, execution: ExecutionFacts) -> bool:
        """Stop the container (TERM, then KILL) after proof by name and labels; it is kept, its addresses freed."""
        try:
            address = self.site(execution.config).address
            return await call_engine(address, lambda engine: lifecycle.end_container(engine, execution), kind="stops")
        except ExecutorError as error:
            log.warning("session %s: its container cannot be ended: %s", execution.session_id, error.message)
            return False

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """Return 0: a container's processes end with it."""
        return 0

    def exit_event_source(self, execution: ExecutionFacts) -> EngineAddress:
        """Return the execution's engine; raises RuntimeUnavailable."""
        return self.site(execution.config).address

    def exit_events(self, source: Hashable) -> AsyncIterator[ExitEvent]:
        """Follow the engine's event stream."""
        assert isinstance(source, EngineAddress)  # noqa: S101  (from exit_event_source)
        return exit_events.exit_events(source)

    async def orphans(self, known: Collection[str], configs: Iterable[Mapping[str, Any]]) -> list[Orphan]:
        """List our containers whose execution id is not in ``known``, and abandoned helper containers.

        Raises RuntimeUnavailable.
        """
        listings = [
            call_engine(address, lambda engine: lifecycle.list_orphans(engine, known), _LIST_TIMEOUT)
            for address in self.addresses(configs)
        ]
        return list(itertools.chain.from_iterable(await asyncio.gather(*listings)))

    async def remove_orphan(self, orphan: Orphan, configs: Iterable[Mapping[str, Any]]) -> bool:
        """Remove a container that is still what was listed; worktree and journal stay. Raises RuntimeUnavailable."""
        removed = [
            await call_engine(address, lambda engine: lifecycle.remove_container(engine, orphan), kind="stops")
            for address in self.addresses(configs)
        ]
        return bool(removed) and all(removed)


async def _read_work(site: Site, execution: ExecutionFacts, known: Sequence[str], into: IO[bytes]) -> dict[str, str]:
    """Read a session's work from its workspace, without its agentctl."""
    owner = execution.worktree_owner
    inside = f"/tmp/{owner}.bundle"  # noqa: S108  (the container's own)
    arguments = ["bundle", "--owner", owner, "--branch", workspace_store.workspace_branch(execution), "--into", inside]
    for commit in known:
        arguments += ["--known", commit]

    def read(engine: Engine) -> dict[str, str]:
        helper = HelperContainer(
            execution.id, execution.session_id, site.config, site.user, site.workspace_mounts(execution)
        )
        with state_directory_of(execution.id).start_lock(), helper.created(engine, "work", arguments) as name:
            answer = helper.run(engine, name)
            refs = workspace_root.parse_refs(answer)
            if answer.get("packed"):
                archives.fetch_file(engine, name, inside, into)
        return refs

    return await call_for_workspace(site.address, execution.repository_path, read)


async def _ensure_container(site: Site, spec: LaunchSpec, lost: str = "") -> RunningContainer:
    try:
        return await call_for_workspace(
            site.address, spec.repository_path, lambda engine: launch.ensure_container(engine, site, spec, lost)
        )
    except OSError as error:
        raise LaunchFailed(f"The container could not be prepared: {error}") from error


async def _observe(
    site: Site, executions: Sequence[ExecutionFacts], timeout: float, concurrency: int
) -> dict[str, Observation]:
    try:
        async with asyncio.timeout(timeout):
            known = await call_engine(site.address, lambda engine: list_containers(engine, executions), timeout)
    except (TimeoutError, ExecutorError) as error:
        why = "the Docker engine does not answer in time"
        if isinstance(error, ExecutorError):
            why = error.message_for_staff or why
        log.warning("cannot observe containers: %s", why)
        return {one.id: Observation.unknown("runtime_unavailable") for one in executions}
    targets = []
    for execution in executions:
        if url := container_url(known.containers.get(execution.id), site.host):
            token = launch_tokens.bearer_token(execution.auth_token, execution.state)
            targets.append(StatusTarget(execution.id, url, token))
    answers = await poll_statuses(targets, timeout, concurrency)
    bound = asyncio.Semaphore(concurrency)

    async def judged(execution: ExecutionFacts) -> Observation:
        async with bound:
            execution, answer = await _poll_with_launch_token(
                site, execution, known, answers.get(execution.id), timeout
            )
            return await judge_container(site, execution, known, answer)

    return dict(zip([one.id for one in executions], await asyncio.gather(*map(judged, executions)), strict=True))


async def _poll_with_launch_token(
    site: Site, execution: ExecutionFacts, known: ContainerListing, answer: Any, timeout: float
) -> tuple[ExecutionFacts, Any]:
    """Poll again with the launch's own token if the row's was rejected: the row may not know the launch yet."""
    url = container_url(known.containers.get(execution.id), site.host)
    if not isinstance(answer, AgentctlForeign) or answer.details.get("reason") != NOT_OURS or url is None:
        return execution, answer
    try:
        token = await asyncio.to_thread(site.token_of, execution)
    except (ExecutorError, OSError) as error:
        log.warning("session %s: its token cannot be read: %s", execution.session_id, error)
        return execution, answer
    kept = {name: value for name, value in execution.state.items() if name != LAUNCH_KEY}
    state = kept | launch_tokens.token_state(token)
    if state == execution.state or not launch_tokens.is_token_of(token, execution.auth_token):
        return execution, answer
    second = await poll_statuses([StatusTarget(execution.id, url, token)], timeout, 1)
    return replace(execution, state=state), second[execution.id]


async def _wait_until_ready(site: Site, spec: LaunchSpec, up: RunningContainer) -> tuple[str, str]:
    """Return agentctl's URL and boot id once it answers to our token; re-reads the published port until then."""
    deadline, problem = time.monotonic() + WORKSPACE_TIMEOUT + READY_TIMEOUT, "no port is published"
    token = up.setup.token
    url = container_url(up.container, site.host)
    while time.monotonic() < deadline:
        if url:
            try:
                status = await poll_status(StatusTarget(spec.execution_id, url, token), _ASK_TIMEOUT)
                return url, str(status.get("boot_id", ""))
            except AgentctlUnreachable as error:
                problem = error.message
            except ExecutorError as error:
                raise LaunchFailed(f"This session's agentctl rejected the control plane: {error.message}") from error
        await asyncio.sleep(_POLL)
        url = await call_engine(site.address, lambda engine: _still_running(engine, site, spec))
    raise LaunchFailed(f"agentctl was not ready within {READY_TIMEOUT:g} s: {problem}")


def _still_running(engine: Engine, site: Site, spec: LaunchSpec) -> str | None:
    name = sites.container_name(spec.execution_id)
    container = engine.find(name)
    if container is None:
        raise LaunchFailed(f"The container {name} was removed while it was starting.")
    if container.status in ENDED_STATUSES:
        output = engine.output_tail(container.id)
        if "error" in (answer := workspace_root.parse_answer(output) or {}):
            raise workspace_root.parse_error(answer)
        if container.out_of_memory:
            why = "out of memory"
        else:
            why = f"exit code {container.exit_code}"
        raise LaunchFailed(f"The container exited on startup ({why}): {output}")
    return container_url(container, site.host)
