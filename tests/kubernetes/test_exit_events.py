"""Pods that somebody has deleted are let go as soon as their end is certain, also if nothing more happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import pytest

from executors_app.agentctl_client.cluster_access import ClusterAddress
from executors_app.runtimes.kubernetes import exit_events, runtime, words
from executors_app.runtimes.kubernetes.cluster import PODS
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.exit_events import Namespace, _Follower
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.wire.executions import ExitEvent
from tests.kubernetes.objects import pod_object
from tests.kubernetes.test_volumes import ENDED, RUNNING, MemoryCluster


class QuietCluster(MemoryCluster):
    """A cluster in which nothing changes while it is watched."""

    def __init__(self, pod: Pod):
        super().__init__(pod, holder=pod.uid)
        self.is_down = False
        self.lists = 0

    async def find(self, kind: str, name: str) -> Any:
        if self.is_down:
            raise words.ClusterUnavailable("down")
        return await super().find(kind, name)

    async def list_all(self, kind: str, labels: Mapping[str, str] = MappingProxyType({})) -> tuple[list[Any], str]:
        self.lists += 1
        return await super().list_all(kind, labels)

    async def watch(self, kind: str, version: str, seconds: int) -> AsyncIterator[tuple[str, Any]]:
        changes: list[tuple[str, Any]] = []
        for change in changes:
            yield change

    def has_pod(self) -> bool:
        return any(kind == PODS for kind, _ in self.objects)


def follow(monkeypatch: pytest.MonkeyPatch, cluster: QuietCluster) -> _Follower:
    @asynccontextmanager
    async def opened(*_: Any) -> AsyncIterator[QuietCluster]:
        yield cluster

    monkeypatch.setattr(exit_events, "open_cluster", opened)
    return _Follower(Namespace(ClusterAddress(), "agents"))


async def events_of(follower: _Follower) -> list[str]:
    return [event.session_id async for event in follower.window()]


async def test_end_that_could_not_be_recorded_is_recorded_in_the_next_window(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = QuietCluster(pod_object(ENDED, ENDED, deleted=True))
    follower = follow(monkeypatch, cluster)
    cluster.is_down = True
    assert len(await events_of(follower)) == 1
    assert cluster.has_pod()
    cluster.is_down = False
    assert await events_of(follower) == []
    assert not cluster.has_pod()
    lists = cluster.lists
    await events_of(follower)
    await events_of(follower)
    assert cluster.lists == lists


async def test_pod_of_a_node_that_a_person_gives_up_later_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = QuietCluster(pod_object(RUNNING, ENDED, deleted=True))
    follower = follow(monkeypatch, cluster)
    await events_of(follower)
    assert cluster.has_pod()
    cluster.out_of_service = True
    await events_of(follower)
    assert not cluster.has_pod()


async def settle(monkeypatch: pytest.MonkeyPatch, cluster: QuietCluster) -> None:
    """Do what each interval of sweeps does."""
    follow(monkeypatch, cluster)
    monkeypatch.setattr(runtime, "read_kubernetes_config", lambda config: KubernetesConfig(**config))
    await runtime.RUNTIME.settle_ended([{"namespace": "agents"}, {"namespace": "agents", "cpus": 2}])


async def test_deleted_pod_that_has_ended_goes_although_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = QuietCluster(pod_object(ENDED, ENDED, deleted=True))
    await settle(monkeypatch, cluster)
    assert not cluster.has_pod()
    assert cluster.volume.last_end == "pod_ended"
    assert cluster.lists == 1, "one list for all executors of a namespace"


@pytest.mark.parametrize(
    "pod", [pod_object(RUNNING, ENDED, deleted=True), pod_object(ENDED, ENDED)], ids=["may still run", "not deleted"]
)
async def test_other_pods_stay(monkeypatch: pytest.MonkeyPatch, pod: Pod) -> None:
    cluster = QuietCluster(pod)
    await settle(monkeypatch, cluster)
    assert cluster.has_pod()
    assert cluster.log == []


async def test_namespace_that_is_watched_is_not_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = QuietCluster(pod_object(ENDED, ENDED))
    follow(monkeypatch, cluster)
    events: Any = exit_events.exit_events(Namespace(ClusterAddress(), "agents"))
    assert (await anext(events)).session_id
    lists = cluster.lists
    await settle(monkeypatch, cluster)
    assert cluster.lists == lists
    await events.aclose()
    await settle(monkeypatch, cluster)
    assert cluster.lists == lists + 1


async def test_cluster_that_does_not_answer_is_left_for_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = QuietCluster(pod_object(ENDED, ENDED, deleted=True))
    cluster.is_down = True
    await settle(monkeypatch, cluster)
    cluster.is_down = False
    await settle(monkeypatch, cluster)
    assert not cluster.has_pod()


class Enough(Exception):
    """The test has seen enough."""


@pytest.mark.parametrize("problem", [None, words.GoneError("old")], ids=["ends at once", "is always too old"])
async def test_watch_that_ends_at_once_is_not_opened_again_at_once(
    monkeypatch: pytest.MonkeyPatch, problem: Exception | None
) -> None:
    pauses: list[float] = []

    async def window(_: _Follower) -> AsyncIterator[ExitEvent]:
        yield ExitEvent("one")
        if problem is not None:
            raise problem

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise Enough

    monkeypatch.setattr(_Follower, "window", window)
    monkeypatch.setattr(asyncio, "sleep", pause)
    with pytest.raises(Enough):
        async for _ in exit_events.exit_events(Namespace(ClusterAddress(), "agents")):
            pass
    assert max(pauses) > 0
