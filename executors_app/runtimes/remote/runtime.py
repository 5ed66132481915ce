"""Runtime ``remote``: sessions on other machines, each reached through one ``agentctl host`` daemon.

One request covers all executions of a host. A host that does not answer proves nothing about them: they are
*unknown*, not dead. Its executions share that machine, as with ``local_standalone``: *trusted agents only*.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from django.conf import settings

from executors_app.agentctl_client.client import AgentctlClient, open_connection_pool, tls_trust
from executors_app.backoff import PeerBackoff, jittered_delay
from executors_app.repositories import workspace_store
from executors_app.runtimes import run_blocking
from executors_app.runtimes.deployment_labels import DEPLOYMENT_LABEL, deployment_labels
from executors_app.runtimes.remote.config import HostConfig, read_host_config
from executors_app.runtimes.remote.hosts import HostClient
from executors_app.runtimes.remote.observation import error_reason, judge_instance
from executors_app.runtimes.remote.silence import watch_for_silence
from executors_app.wire import launch_tokens
from executors_app.wire.errors import (
    AgentctlForeign,
    AgentctlRefused,
    AgentctlUnreachable,
    ExecutorError,
    RuntimeUnavailable,
)
from executors_app.wire.executions import ExecutionFacts, ExitEvent, Launched, LaunchSpec, Observation, Orphan
from executors_app.wire.launch_tokens import LAUNCH_KEY
from executors_app.wire.protocol import Code

log = logging.getLogger(__name__)

_ASK_TIMEOUT: Final = 5.0
_RETRY_WINDOW: Final = 10.0
"""Seconds in which a launch is retried while the host is down: it may be starting."""
_FIRST_RETRY_DELAY: Final = 0.2
_INSTANCE_SHARE: Final = 0.6
"""Fraction of the timeout that each instance gets; the rest is for the network."""
_RETRYABLE_REASONS: Final = frozenset({"refused", "closed"})


class Remote:
    """The runtime; remembers only which hosts did not answer."""

    name = "remote"
    isolated = False

    def __init__(self) -> None:
        self._backoff = PeerBackoff()
        self._silent_hosts: dict[str, str] = {}
        """By URL, why a watched host does not answer now."""

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Check the settings (see ``HostConfig``); raises ValueError, also for a fingerprint without https."""
        read = read_host_config(config)
        if read.fingerprint and urlsplit(read.url).scheme != "https":
            # Not in read_host_config, so that running sessions with such settings stay reachable.
            raise ValueError("fingerprint requires an https url: over http there is no certificate to check.")

    async def check_availability(self, config: Mapping[str, Any]) -> None:
        """Check that the host answers and accepts our token."""
        read = _config(config)
        await self._ask_host(read, _client(read))

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Have the host make the worktree and start agentctl, or find both."""
        config = _config(spec.config)
        client = _client(config)
        order = {
            "execution_id": spec.execution_id,
            "session_id": spec.session_id,
            "task_id": spec.task_id,
            "repository": config.repositories.get(spec.repository_path, spec.repository_path),
            "base_branch": spec.base_branch,
            "worktree_path": spec.worktree_path,
            "worktree_branch": spec.worktree_branch,
        }
        made = await self._create_with_retries(config, client, order, spec.auth_token)
        state = {"host": made["host_id"]}
        if made.get("launch"):
            state[LAUNCH_KEY] = str(made["launch"])
        launched = Launched(
            url=config.url_of(spec.execution_id),
            pid=None,
            boot_id=str(made["boot_id"]),
            workspace_path=str(made["workspace_path"]),
            worktree_id=str(made["worktree_id"]),
            worktree_path=str(made["worktree_path"]),
            worktree_branch=str(made["worktree_branch"]),
            found=made["found"] is True,
            state=state,
        )
        if launched.found:
            await _agentctl(launched, spec).ensure_workspace()
        return launched

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Every control plane that reaches the host can manage its executions."""
        return True

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """Send one request for all executions of a host, to all hosts concurrently."""
        hosts: defaultdict[str, list[ExecutionFacts]] = defaultdict(list)
        for one in executions:
            hosts[repr(sorted(one.config.items(), key=repr))].append(one)
        bound = asyncio.Semaphore(concurrency)
        seen: dict[str, Observation] = {}

        async def observe_host(group: Sequence[ExecutionFacts]) -> None:
            async with bound:
                seen.update(await self._observe_host(group, timeout))

        await asyncio.gather(*map(observe_host, hosts.values()))
        return seen

    async def end(self, execution: ExecutionFacts) -> bool:
        """Have the host end it after proof of ownership."""
        try:
            return await _client(_config(execution.config)).end(execution.id, execution.session_id)
        except ExecutorError as error:
            log.warning("session %s: its host could not end it: %s", execution.session_id, error.message)
            return False

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """Have the host end leftover processes after proof; does nothing while an agentctl lives."""
        try:
            config = _config(execution.config)
            # A quick call first: ending processes may take long, but a hanging host must be noticed soon.
            await self._ask_host(config, _client(config))
            return await _client(config).end_leftovers(execution.id, execution.session_id)
        except ExecutorError as error:
            log.warning(
                "session %s: its host could not end leftover processes: %s", execution.session_id, error.message
            )
            return 0

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """Have the host read it from its disk."""
        try:
            return run_blocking(_client(_config(execution.config)).resume_token(execution.id))
        except AgentctlRefused as error:
            _raise_unless_unknown(error)
            return None

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Have the host read it from its disk."""
        try:
            return run_blocking(_client(_config(execution.config)).unread_journal(execution.id, after, epoch))
        except AgentctlRefused as error:
            _raise_unless_unknown(error)
            return []

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """Ask the host, if the team's repository is on this machine; False if nothing was new."""
        if not (execution.repository_path and execution.worktree_branch and Path(execution.repository_path).is_dir()):
            return False
        client = _client(_config(execution.config))
        try:
            return await workspace_store.receive_work(execution, partial(client.work, execution.id))
        except AgentctlUnreachable as error:
            raise RuntimeUnavailable(error.message) from error

    def exit_event_source(self, execution: ExecutionFacts) -> Hashable:
        """Return the host and how to connect to it; raises RuntimeUnavailable."""
        config = _config(execution.config)
        return config.url, config.token_file, config.fingerprint

    async def exit_events(self, source: Hashable) -> AsyncGenerator[ExitEvent, None]:
        """Yield when a host falls silent and when it answers again: a frozen host keeps its streams open."""
        config = HostConfig(*source)  # type: ignore[misc]  # from exit_event_source
        async with open_connection_pool() as http:
            try:
                async for event in watch_for_silence(lambda timeout: self._watch(config, http, timeout)):
                    yield event
            finally:
                self._silent_hosts.pop(config.url, None)

    async def _watch(self, config: HostConfig, http: aiohttp.ClientSession, timeout: float) -> None:
        try:
            await _client(config, http).host(timeout)
        except AgentctlUnreachable as error:
            self._silent_hosts[config.url] = str(error.details.get("reason", error.code))
            raise
        was_silent = self._silent_hosts.pop(config.url, None)
        self._backoff.reset(config.url)
        if was_silent:
            log.info("the host %s answers again", config.url)

    async def orphans(self, known: Collection[str], configs: Collection[Mapping[str, Any]]) -> list[Orphan]:
        """List this deployment's instances whose execution id is not in ``known``; raises RuntimeUnavailable."""
        found: list[Orphan] = []
        for config in map(_config, configs):
            found += [
                Orphan(_name_of(one, config), str(one["execution_id"]), str(one["observed"]))
                for one in await self._our_instances(config)
                if one["execution_id"] not in known
            ]
        return found

    async def remove_orphan(self, orphan: Orphan, configs: Collection[Mapping[str, Any]]) -> bool:
        """End an instance and have its host forget it; worktree and journal stay. Raises RuntimeUnavailable."""
        for config in map(_config, configs):
            for one in await self._our_instances(config):
                if _name_of(one, config) == orphan.id:
                    return await _client(config).end(orphan.execution_id, one["session_id"], forget=True)
        return False

    async def _our_instances(self, config: HostConfig) -> list[dict[str, Any]]:
        try:
            answer = await _client(config).instances(_ASK_TIMEOUT, _ASK_TIMEOUT * _INSTANCE_SHARE)
        except ExecutorError as error:
            raise _host_error(config, error) from error
        return [one for one in answer["instances"] if one["deployment"] == deployment_labels()[DEPLOYMENT_LABEL]]

    async def _observe_host(self, executions: Sequence[ExecutionFacts], timeout: float) -> dict[str, Observation]:
        try:
            config = _config(executions[0].config)
            client = _client(config)
        except RuntimeUnavailable as error:
            log.warning("cannot observe a remote host: %s", error.message)
            return {one.id: Observation.unknown("runtime_unavailable") for one in executions}
        # Otherwise every sweep would wait for a silent host until its timeout.
        if reason := self._silent_hosts.get(config.url) or self._backoff.reason_to_wait(config.url):
            return {one.id: Observation.unknown(reason) for one in executions}
        try:
            answer = await client.instances(timeout, timeout * _INSTANCE_SHARE)
            listed = {str(one["execution_id"]): one for one in answer["instances"]}
            host_id = str(answer["host_id"])
            self._backoff.reset(config.url)
            return {one.id: judge_instance(one, listed.get(one.id), host_id, config) for one in executions}
        except (ExecutorError, KeyError, TypeError, ValueError) as error:
            reason = error_reason(error)
            if isinstance(error, AgentctlUnreachable):
                self._backoff.record_failure(config.url, reason)
            log.warning("the host %s could not be reached: %s", config.url, error)
            return {one.id: Observation.unknown(reason) for one in executions}

    async def _create_with_retries(
        self, config: HostConfig, client: HostClient, order: Mapping[str, Any], secret: str
    ) -> dict[str, Any]:
        """Send the launch request and retry while the host is down; the same ids find what an earlier one started."""
        deadline, tries = time.monotonic() + _RETRY_WINDOW, 0
        while True:
            tries += 1
            try:
                await self._ask_host(config, client)  # quick: a hanging host must not delay the start
                return await client.create({**order, "token": launch_tokens.mint_launch_token(secret)}, secret)
            except (AgentctlUnreachable, RuntimeUnavailable) as error:
                is_retryable = error.details.get("reason") in _RETRYABLE_REASONS and time.monotonic() < deadline
                if not is_retryable and isinstance(error, RuntimeUnavailable):
                    raise
                if not is_retryable:
                    raise _host_error(config, error) from error
            except AgentctlForeign as error:
                raise _host_error(config, error) from error
            await asyncio.sleep(jittered_delay(tries, _FIRST_RETRY_DELAY, _ASK_TIMEOUT))

    async def _ask_host(self, config: HostConfig, client: HostClient) -> dict[str, Any]:
        try:
            host = await client.host(_ASK_TIMEOUT)
        except ExecutorError as error:
            raise _host_error(config, error, **error.details) from error
        self._backoff.reset(config.url)
        return host


RUNTIME: Final = Remote()


def _agentctl(launched: Launched, spec: LaunchSpec) -> AgentctlClient:
    token = launch_tokens.bearer_token(spec.auth_token, launched.state)
    return AgentctlClient(launched.url, token, spec.execution_id, trust=tls_trust(spec.config))


def _config(config: Mapping[str, Any]) -> HostConfig:
    try:
        return read_host_config(config)
    except (ValueError, TypeError) as error:
        raise RuntimeUnavailable(f"The settings of this executor are not valid: {error}") from error


def _host_error(config: HostConfig, error: ExecutorError, **details: Any) -> RuntimeUnavailable:
    """Return the error for members; the host's address is only for staff and the log."""
    log.warning("the host %s cannot be used: %s", config.url, error.message_for_staff)
    about = f"{error.details.get('for_staff', '')} Its address is {config.url}.".strip()
    return RuntimeUnavailable(f"The remote host: {error.message}", **{**details, "for_staff": about})


def _raise_unless_unknown(error: AgentctlRefused) -> None:
    """Raise RuntimeUnavailable unless the host says that it has never run the execution: then nothing was left."""
    if error.refusal != Code.NOT_FOUND:
        raise RuntimeUnavailable(f"The remote host: {error.message}") from error


def _client(config: HostConfig, http: aiohttp.ClientSession | None = None) -> HostClient:
    token = config.token(Path(settings.KANDEV_DATA_DIR) / "hosts")
    return HostClient(config, token, deployment_labels()[DEPLOYMENT_LABEL], http)


def _name_of(listed: Mapping[str, Any], config: HostConfig) -> str:
    return f"{listed['execution_id']}@{urlsplit(config.url).netloc}"
