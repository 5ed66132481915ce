"""What a cluster does to sessions, and what is said of them: nothing false, nothing twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors_app.runtimes.kubernetes import launch, manifests, pod_state, volumes
from executors_app.runtimes.kubernetes.cluster import CLAIMS, PODS, RIGHTS, SECRETS, TUNNEL_RIGHTS, open_cluster
from executors_app.runtimes.kubernetes.config import read_kubernetes_config
from executors_app.runtimes.kubernetes.names import FINALIZER, claim_name, pod_name
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.runtimes.kubernetes.words import ConflictError
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import Launched, LaunchSpec, Observed
from tests.executors.harness import client_of, known, observe_one, row_of, spec_for
from tests.kubernetes.standin.cluster import StandIn
from tests.kubernetes.standin.harness import KubernetesHarness
from tests.waiting import eventually_async

pytestmark = pytest.mark.any_database
EVICTION = (
    "The node was low on resource: memory. Container agentctl was using 900Mi, which exceeds its request of 64Mi. "
)


@pytest.fixture
def spec(harness: KubernetesHarness) -> LaunchSpec:
    return spec_for(harness)


@pytest.fixture
async def launched(harness: KubernetesHarness, spec: LaunchSpec) -> Launched:
    return await harness.runtime.launch(spec)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be waited for that a test knows not to come."""
    monkeypatch.setattr(launch, "ENDING_TIMEOUT", 1.0)
    monkeypatch.setattr(pod_state, "_PULL_PATIENCE", -1.0)
    monkeypatch.setattr(pod_state, "_SCHEDULE_PATIENCE", -1.0)


def _evict(cluster: StandIn, name: str) -> None:
    cluster.evict(name, EVICTION)


def _run_out_of_memory(cluster: StandIn, name: str) -> None:
    cluster.kill(name, "OOMKilled")


def _command_in(error: ExecutorError) -> str:
    """Return the command that an error tells a person to run."""
    return error.message.rpartition("run: ")[2]


@pytest.mark.parametrize(
    ("strike", "reason"),
    [(_evict, "pod_evicted"), (_run_out_of_memory, "out_of_memory"), (StandIn.kill, "pod_ended")],
    ids=["evicted", "out of memory", "killed"],
)
async def test_seen_end_is_dead_with_its_reason_and_the_session_starts_again(
    harness: KubernetesHarness,
    spec: LaunchSpec,
    launched: Launched,
    strike: Callable[[StandIn, str], None],
    reason: str,
) -> None:
    await asyncio.to_thread(strike, harness.cluster, pod_name(spec.session_id))
    found = await observe_one(harness, row_of(harness, spec, launched))
    assert (found.observed, found.reason) == (Observed.DEAD, reason)
    again = await harness.runtime.launch(known(spec, launched))
    assert again.boot_id != launched.boot_id


async def test_session_survives_the_death_of_the_api_server(
    harness: KubernetesHarness, spec: LaunchSpec, launched: Launched
) -> None:
    facts = row_of(harness, spec, launched)
    with harness.cluster.down():
        assert (await observe_one(harness, facts)).observed is Observed.UNKNOWN
        with pytest.raises(ExecutorError) as refused:
            await harness.runtime.launch(known(spec, launched))
        assert refused.value.code == "cluster_unavailable"
        assert await harness.runtime.end(facts) is False
    found = await observe_one(harness, facts)
    assert found.observed is Observed.ALIVE
    assert found.report is not None
    assert found.report["boot_id"] == launched.boot_id


async def test_lost_node_is_unknown_until_a_person_confirms_the_end_of_its_pod(
    harness: KubernetesHarness, spec: LaunchSpec, launched: Launched
) -> None:
    (node,) = {pod["spec"]["nodeName"] for pod in harness.cluster.pods()}
    harness.cluster.lose(node)
    found = await observe_one(harness, row_of(harness, spec, launched))
    assert (found.observed, found.reason) == (Observed.UNKNOWN, "pod_vanished")
    with pytest.raises(ExecutorError) as refused:
        await harness.runtime.launch(known(spec, launched))
    assert refused.value.code == "pod_end_unknown"
    assert harness.cluster.pods() == []
    lost = harness.cluster.running(pod_name(spec.session_id)).container
    assert lost is not None

    # A person has switched the machine off, and says so with the command of the message.
    lost.send_signal(signal.SIGKILL)
    harness.cluster.annotate_claim(_command_in(refused.value))
    found = await observe_one(harness, row_of(harness, spec, launched))
    assert (found.observed, found.reason) == (Observed.DEAD, "end_confirmed")
    again = await harness.runtime.launch(known(spec, launched))
    assert again.boot_id != launched.boot_id


async def test_name_of_a_forced_deletion_is_a_fence_while_the_container_runs(
    harness: KubernetesHarness, spec: LaunchSpec, launched: Launched
) -> None:
    facts, name = row_of(harness, spec, launched), pod_name(spec.session_id)
    node = harness.cluster.pod(name)["spec"]["nodeName"]
    harness.cluster.separate(node)
    harness.cluster.force_delete(name)
    assert (await observe_one(harness, facts, timeout=5.0)).observed is Observed.UNKNOWN
    with pytest.raises(ExecutorError) as refused:
        await harness.runtime.launch(known(spec, launched))
    assert refused.value.code == "pod_still_ending"
    assert harness.cluster.pod(name)["metadata"]["uid"] in _command_in(refused.value)
    assert harness.cluster.running(name).container is not None

    harness.cluster.heal(node)

    async def is_dead() -> bool:
        return (await observe_one(harness, facts)).observed is Observed.DEAD

    await eventually_async(is_dead, describe="the node has reported the end")
    again = await harness.runtime.launch(known(spec, launched))
    assert again.boot_id != launched.boot_id


async def test_pod_that_has_ended_but_is_still_listed_needs_nobody_to_confirm_its_end(
    harness: KubernetesHarness, spec: LaunchSpec, launched: Launched
) -> None:
    harness.cluster.hold(pod_name(spec.session_id))
    harness.cluster.kill(pod_name(spec.session_id))

    async def is_dead() -> bool:
        return (await observe_one(harness, row_of(harness, spec, launched))).observed is Observed.DEAD

    await eventually_async(is_dead, describe="the node has reported the end")
    with pytest.raises(ExecutorError) as refused:
        await harness.runtime.launch(known(spec, launched))
    assert refused.value.code == "pod_still_ending"
    assert "has ended, but the cluster has not removed it yet" in refused.value.message
    assert "run:" not in refused.value.message


async def test_expired_watch_misses_no_end(harness: KubernetesHarness, spec: LaunchSpec, launched: Launched) -> None:
    runtime, facts = harness.runtime, row_of(harness, spec, launched)
    events = runtime.exit_events(runtime.exit_event_source(facts))
    seen: list[str] = []

    async def listen() -> None:
        async for event in events:
            seen.append(event.session_id)  # noqa: PERF401 - the events have no end

    listening = asyncio.create_task(listen())
    try:
        await eventually_async(lambda: "watch pods" in harness.cluster.server.calls, describe="the watch is open")
        harness.cluster.forget_changes()
        await asyncio.to_thread(harness.kill, spec)
        await eventually_async(lambda: spec.session_id in seen, describe="the end is reported")
        # The list that follows an expired watch has reported the end: the next watch may begin a moment later.
        calls = harness.cluster.server.calls
        await eventually_async(lambda: calls.count("watch pods") > 1, describe="the expired watch is begun again")
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


@pytest.mark.parametrize(
    ("changes", "code", "is_kept"),
    [
        ({"image": "localhost:1/absent:none"}, "pod_image_not_pulled", False),
        ({"image": "localhost:1/absent:none", "image_pull_policy": "IfNotPresent"}, "pod_image_not_pulled", False),
        # These wait for an autoscaler, or for a person who adds storage.
        ({"node_selector": {"gpu": "yes"}}, "pod_unschedulable", True),
        ({"memory_mb": 9 << 20}, "pod_unschedulable", True),
        ({"storage_class": "no-such-class"}, "pod_volume_not_bound", True),
    ],
    ids=["image is not on the node", "image cannot be pulled", "no such node", "no node is large enough", "no storage"],
)
async def test_pod_that_cannot_start_is_said_in_words_and_kept_only_while_waiting_helps(
    harness: KubernetesHarness, changes: dict[str, Any], code: str, is_kept: bool
) -> None:
    spec = replace(spec_for(harness), config={**harness.config, **changes})
    with pytest.raises(ExecutorError) as refused:
        await harness.runtime.launch(spec)
    assert refused.value.code == code
    kept = [pod for pod in harness.cluster.pods() if "deletionTimestamp" not in pod["metadata"]]
    assert len(kept) == is_kept


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "stopped"])
async def test_pod_that_waits_for_a_session_that_nobody_starts_is_removed(
    harness: KubernetesHarness, is_closed: bool
) -> None:
    spec = replace(spec_for(harness), config={**harness.config, "node_selector": {"gpu": "yes"}})
    waits: set[str] = set()
    with pytest.raises(ExecutorError):
        await harness.runtime.launch_reporting(spec, lambda wait: waits.add(wait.code))
    assert "pod_unschedulable" in waits
    asked: list[str] = []

    async def find_none(owners: Collection[str]) -> dict[str, bool]:
        asked.extend(owners)
        return {}

    async def find_all(owners: Collection[str]) -> dict[str, bool]:
        return dict.fromkeys(owners, is_closed)

    await harness.runtime.remove_unwanted([harness.config], find_none)
    assert asked == [spec.session_id]
    assert len(harness.cluster.pods()) == 1, "its session may still be started"
    await harness.runtime.remove_unwanted([harness.config], find_all)
    assert harness.cluster.pods() == []
    config = read_kubernetes_config(harness.config)
    async with open_cluster(config.cluster, config.namespace) as cluster:
        assert (await cluster.list_all(SECRETS))[0] == []
        claim = await cluster.find(CLAIMS, claim_name(spec.session_id))
        assert (claim is None or "deletionTimestamp" in claim["metadata"]) is is_closed


async def test_pod_that_has_run_is_never_removed_as_unwanted(harness: KubernetesHarness, launched: Launched) -> None:
    async def find_all(owners: Collection[str]) -> dict[str, bool]:
        return dict.fromkeys(owners, True)

    await harness.runtime.remove_unwanted([harness.config], find_all)
    assert [pod["metadata"].get("deletionTimestamp") for pod in harness.cluster.pods()] == [None]


async def test_finalizer_of_an_earlier_pod_is_not_taken_from_the_next_one(
    harness: KubernetesHarness, spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_kubernetes_config({**harness.config, "node_selector": {"gpu": "yes"}})
    body = manifests.session_pod(config, spec, "a token")
    async with open_cluster(config.cluster, config.namespace) as cluster:
        earlier = await cluster.create(PODS, body)
        await volumes.let_go(cluster, Pod(earlier))
        following = await cluster.create(PODS, body)
        with pytest.raises(ConflictError):
            await cluster.release(PODS, earlier, FINALIZER)

        find, read = cluster.find, [earlier]

        async def find_late(kind: str, name: str) -> dict[str, Any] | None:
            return read.pop() if read else await find(kind, name)

        monkeypatch.setattr(cluster, "find", find_late)
        await volumes.let_go(cluster, Pod(earlier))
        kept = await find(PODS, pod_name(spec.session_id))
        assert kept is not None
        assert kept["metadata"]["uid"] == following["metadata"]["uid"]
        assert Pod(kept).has_finalizer


async def test_used_up_quota_is_said_with_its_name(harness: KubernetesHarness, spec: LaunchSpec) -> None:
    harness.cluster.set_quota("team", {"pods": 0})
    with pytest.raises(ExecutorError) as refused:
        await harness.runtime.launch(spec)
    assert refused.value.code == "cluster_quota_exceeded"
    assert "team" in refused.value.message


async def test_small_role_is_named_by_the_check_and_refuses_the_launch(
    harness: KubernetesHarness, spec: LaunchSpec
) -> None:
    harness.cluster.take_right("pods", "create")
    for attempt in (harness.runtime.check_availability(harness.config), harness.runtime.launch(spec)):
        with pytest.raises(ExecutorError) as refused:
            await attempt
        assert refused.value.code == "cluster_role_too_small"
        assert "create pods" in refused.value.message


async def test_namespace_that_does_not_exist_is_named_by_the_check_and_by_the_launch(
    harness: KubernetesHarness, spec: LaunchSpec
) -> None:
    harness.cluster.widen_role()
    config = {**harness.config, "namespace": "mistyped"}
    for attempt in (
        harness.runtime.check_availability(config),
        harness.runtime.launch(replace(spec, config=config)),
    ):
        with pytest.raises(ExecutorError) as refused:
            await attempt
        assert refused.value.code == "cluster_namespace_missing"
        assert "mistyped" in refused.value.message


async def test_role_that_allows_nothing_is_said_without_a_list(harness: KubernetesHarness) -> None:
    for resource, verb in (*RIGHTS, *TUNNEL_RIGHTS):
        harness.cluster.take_right(resource, verb)
    with pytest.raises(ExecutorError) as refused:
        await harness.runtime.check_availability(harness.config)
    assert refused.value.code == "cluster_role_too_small"
    assert "Check the name of the namespace" in refused.value.message
    assert "create pods" not in refused.value.message


async def test_end_is_seen_although_an_old_node_forgets_the_container(
    repository: Path, tmp_path: Path, settings: Any
) -> None:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    with StandIn(forgets_ends=True).serving() as cluster:
        harness = KubernetesHarness(repository, cluster, tmp_path)
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        assert await harness.runtime.end(row_of(harness, spec, launched)) is True
        again = await harness.runtime.launch(known(spec, launched))
        assert (await client_of(spec, again).status())["boot_id"] == again.boot_id
