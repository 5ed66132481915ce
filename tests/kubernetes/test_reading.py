"""Pods that read a volume, and what is left of them."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.repositories import workspace_store
from executors_app.runtimes import read_left_state
from executors_app.runtimes.kubernetes import launch, manifests, names, reading, runtime, words
from executors_app.runtimes.kubernetes.cluster import PODS, SECRETS
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.wire.errors import AgentctlForeign, AgentctlUnreachable, ExecutorError
from executors_app.wire.executions import ExecutionFacts, LeftState
from tests.kubernetes.objects import EXECUTION, SECRET, SESSION, execution_facts, launch_spec, pod_object
from tests.kubernetes.test_volumes import ENDED, MemoryCluster

OTHER = pod_object(ENDED, ENDED, uid="uid-1")
"""The last writer, whose end was recorded."""


def reader(state: dict[str, Any]) -> Pod:
    """Return a Pod that reads the session's volume."""
    pod = pod_object(state, uid="uid-2")
    labels = names.helper_labels(EXECUTION, SESSION)
    metadata = {**pod.entry["metadata"], "labels": labels, "finalizers": []}
    volumes = [{"name": "token", "secret": {"secretName": names.secret_name(labels, "")}}]
    spec = {**pod.entry["spec"], "volumes": volumes, "initContainers": []}
    return Pod({**pod.entry, "metadata": metadata, "spec": spec})


async def test_pod_that_has_read_and_was_left_by_a_killed_process_blocks_nobody() -> None:
    left = reader(ENDED)
    for free in (
        lambda cluster: reading._is_free(cluster, execution_facts()),
        lambda cluster: launch._free_name(cluster, launch_spec()),
    ):
        cluster: Any = MemoryCluster(left, holder=OTHER.uid, ended=f"{OTHER.uid} pod_ended")
        await free(cluster)
        assert (PODS, left.name) not in cluster.objects


async def test_pod_that_nobody_removes_is_removed_before_the_volume_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_OTHERS_PATIENCE", 0.0)
    left = reader({"running": {}})
    cluster: Any = MemoryCluster(left, holder=OTHER.uid, ended=f"{OTHER.uid} pod_ended")
    assert await reading._is_free(cluster, execution_facts())
    assert f"delete {SECRETS}" in cluster.log


class RefusingCluster(MemoryCluster):
    """A cluster that takes Secrets, and refuses Pods."""

    async def create(self, kind: str, body: Any) -> Any:
        if kind == PODS:
            raise words.ClusterQuotaExceeded("The quota is used up.")
        return await super().create(kind, body)


async def test_no_token_is_left_for_a_pod_that_was_refused() -> None:
    cluster: Any = RefusingCluster(holder=OTHER.uid, ended=f"{OTHER.uid} pod_ended")
    config = KubernetesConfig()
    with pytest.raises(words.ClusterQuotaExceeded):
        await launch._create(cluster, config, launch_spec())
    with pytest.raises(words.ClusterQuotaExceeded):
        async with reading._reader(cluster, config, execution_facts(), state=True):
            pass
    assert cluster.secrets() == []


async def test_reading_never_touches_the_secret_of_a_pod_that_starts() -> None:
    cluster: Any = RefusingCluster(holder=OTHER.uid, ended=f"{OTHER.uid} pod_ended")
    labels = names.execution_labels(EXECUTION, SESSION, "")
    await cluster.create(SECRETS, manifests.token_secret(labels, SECRET))
    with pytest.raises(words.ClusterQuotaExceeded):
        async with reading._reader(cluster, KubernetesConfig(), execution_facts(), state=True):
            pass
    assert cluster.secrets() == [names.secret_name(labels, "")]


class UnconfirmingCluster(MemoryCluster):
    """A cluster whose node does not confirm that the object of a Pod may go."""

    namespace = "agents"

    async def delete(self, kind: str, name: str, uid: str = "") -> None:
        self._change(f"delete {kind}")


async def test_name_that_stays_taken_after_a_certain_end_is_waited_for_with_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "ENDING_TIMEOUT", 0.1)
    cluster: Any = UnconfirmingCluster(pod_object({"waiting": {}}, {"running": {}}, deleted=True), fails_after=100)
    with pytest.raises(words.PodStillEnding):
        await launch._free_name(cluster, launch_spec())


class SlowCluster(UnconfirmingCluster):
    """A cluster whose node confirms it some calls later."""

    async def find(self, kind: str, name: str) -> Any:
        if kind == PODS and f"delete {SECRETS}" in self.log:
            self._change("ask")
            if self.log.count("ask") == 3:
                self.objects.pop((kind, name))
        return await super().find(kind, name)


async def test_volume_is_read_once_the_node_has_let_its_pod_go() -> None:
    pod = pod_object(ENDED, ENDED, deleted=True)
    cluster: Any = SlowCluster(pod, holder=pod.uid)
    assert await reading._is_free(cluster, execution_facts())
    assert (PODS, pod.name) not in cluster.objects


def test_all_that_a_dead_agentctl_left_is_read_through_one_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    pods: list[str] = []

    async def fetch(config: KubernetesConfig, execution: ExecutionFacts, into: Path) -> bool:
        pods.append(execution.id)
        into.mkdir(parents=True)
        (into / "token.json").write_text('{"resume_token": "conversation-1"}')
        return True

    monkeypatch.setattr(reading, "fetch_state", fetch)
    facts = execution_facts(config={"kubeconfig": ""})
    monkeypatch.setattr(runtime, "_config", lambda _: KubernetesConfig())
    assert read_left_state(runtime.RUNTIME, facts, 0, "") == LeftState("conversation-1", [])
    assert pods == [EXECUTION]


@pytest.mark.parametrize("answer", [AgentctlUnreachable, AgentctlForeign])
async def test_work_is_read_from_the_volume_if_nothing_or_another_reader_has_the_name_of_the_pod(
    answer: type[ExecutorError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(self: AgentctlClient, known: Sequence[str], into: IO[bytes]) -> dict[str, str]:
        raise answer("agentctl rejected our token")

    async def read_work(
        config: KubernetesConfig, execution: ExecutionFacts, known: Sequence[str], into: IO[bytes]
    ) -> dict[str, str]:
        return {"refs/heads/work": "of the volume"}

    async def receive_work(execution: ExecutionFacts, download: Callable[..., Awaitable[dict[str, str]]]) -> bool:
        return bool(await download([], io.BytesIO()))

    monkeypatch.setattr(AgentctlClient, "work", work)
    monkeypatch.setattr(reading, "read_work", read_work)
    monkeypatch.setattr(workspace_store, "receive_work", receive_work)
    monkeypatch.setattr(runtime, "_config", lambda _: KubernetesConfig())
    facts = execution_facts(
        repository_path="/repository", worktree_path="/worktree", agentctl_url="http://10.0.0.1:8700"
    )
    assert await runtime.RUNTIME.push_work(facts)


@pytest.mark.parametrize(
    ("recorded", "user"),
    [
        ("1234:100", (1234, 100)),
        ("", (1000, 1000)),
        ("0:0", (1000, 1000)),
        ("61817:1", (1000, 1000)),
        ("x", (1000, 1000)),
    ],
)
async def test_volume_is_read_as_the_user_who_owns_its_files(recorded: str, user: tuple[int, int]) -> None:
    cluster: Any = MemoryCluster(holder=OTHER.uid, ended=f"{OTHER.uid} pod_ended")
    cluster.volume.entry["metadata"]["annotations"][names.USER] = recorded
    made = await reading._create(cluster, KubernetesConfig(), execution_facts(), state=True)
    confined = made.entry["spec"]["containers"][0]["securityContext"]
    assert (confined["runAsUser"], confined["runAsGroup"]) == user


async def test_start_records_to_whom_it_gives_the_files() -> None:
    pod = pod_object({"waiting": {}}, {"running": {}})
    cluster: Any = MemoryCluster(pod)
    await launch._hold(cluster, KubernetesConfig(user="1234:100"), launch_spec(), pod)
    assert (cluster.volume.holder, cluster.volume.user) == (pod.uid, "1234:100")
