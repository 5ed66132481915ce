"""The record of who may write to a volume: what is written, in which order, and what follows from it."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from executors_app.runtimes.kubernetes import lifecycle, names, volumes
from executors_app.runtimes.kubernetes.cluster import CLAIMS, PODS, SECRETS
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.observation import Listing, judge
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.runtimes.kubernetes.runtime import RUNTIME
from executors_app.runtimes.kubernetes.volumes import Volume
from executors_app.runtimes.kubernetes.words import ConflictError
from executors_app.wire.executions import Observed
from tests.kubernetes.objects import EXECUTION, SESSION, as_id, execution_facts, pod_object

ENDED: dict[str, Any] = {"terminated": {"exitCode": 0}}
RUNNING: dict[str, Any] = {"running": {}}


class MemoryCluster:
    """Objects by kind and name, and a log of what was changed; ``fails_after`` changes it refuses every call."""

    namespace = "sessions"

    def __init__(self, *pods: Pod, holder: str = "", ended: str = "", fails_after: int = 1000):
        annotations = {names.HOLDER: holder, names.ENDED: ended}
        claim = {"metadata": {"name": names.claim_name(SESSION), "resourceVersion": "1", "annotations": annotations}}
        self.objects: dict[tuple[str, str], Any] = {(CLAIMS, names.claim_name(SESSION)): claim}
        for pod in pods:
            self.objects[PODS, pod.name] = copy.deepcopy(dict(pod.entry))
        self.log: list[str] = []
        self.fails_after, self.out_of_service = fails_after, False
        self.uid = "namespace-1"

    async def create(self, kind: str, body: Any) -> Any:
        self._change(f"create {kind}")
        about = body["metadata"]
        if (kind, about["name"]) in self.objects:
            raise ConflictError("taken")
        made = {**body, "metadata": {**about, "uid": f"made {len(self.log)}", "resourceVersion": "1"}}
        self.objects[kind, about["name"]] = made
        return copy.deepcopy(made)

    async def list_all(self, kind: str, labels: Mapping[str, str] = MappingProxyType({})) -> tuple[list[Any], str]:
        found = [entry for (one, _), entry in self.objects.items() if one == kind]
        return [entry for entry in found if labels.items() <= names.labels_of(entry).items()], "1"

    def secrets(self) -> list[str]:
        """Return the names of all Secrets."""
        return sorted(name for kind, name in self.objects if kind == SECRETS)

    async def find(self, kind: str, name: str) -> Any:
        return copy.deepcopy(self.objects.get((kind, name)))

    async def mark(self, kind: str, entry: Any, annotations: dict[str, str], labels: Any = None) -> Any:
        self._change(f"record {min(annotations)}")
        found = self.objects[kind, entry["metadata"]["name"]]
        if found["metadata"]["resourceVersion"] != entry["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        found["metadata"]["annotations"] |= annotations

    async def release(self, kind: str, entry: Any, finalizer: str) -> None:
        self._change("release")
        self.objects[kind, entry["metadata"]["name"]]["metadata"]["finalizers"] = []

    async def delete(self, kind: str, name: str, uid: str = "") -> None:
        self._change(f"delete {kind}")
        found = self.objects.get((kind, name))
        if found is not None and found["metadata"].get("finalizers"):
            found["metadata"]["deletionTimestamp"] = "now"
        else:
            self.objects.pop((kind, name), None)

    async def delete_unchanged(self, kind: str, entry: Any) -> None:
        found = self.objects.get((kind, entry["metadata"]["name"]))
        if found is not None and found["metadata"]["resourceVersion"] != entry["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        await self.delete(kind, entry["metadata"]["name"])

    async def is_out_of_service(self, node: str) -> bool:
        return self.out_of_service

    async def namespace_uid(self) -> str:
        return self.uid

    def _change(self, what: str) -> None:
        if len(self.log) == self.fails_after:
            raise ConnectionError("the process was killed here")
        self.log.append(what)

    @property
    def volume(self) -> Volume:
        return Volume(self.objects[CLAIMS, names.claim_name(SESSION)])


async def test_end_is_recorded_before_the_object_may_go() -> None:
    pod = pod_object(ENDED, ENDED, phase="Succeeded")
    cluster: Any = MemoryCluster(pod, holder=pod.uid)
    await volumes.settle(cluster, pod, SESSION, pod.end())
    assert cluster.log == [f"record {names.ENDED}", "release", f"delete {PODS}", f"delete {SECRETS}"]
    assert cluster.volume.last_end == "pod_ended"
    assert (PODS, pod.name) not in cluster.objects


@pytest.mark.parametrize("killed_after", range(4))
async def test_end_can_be_settled_again_after_a_crash_anywhere(killed_after: int) -> None:
    pod = pod_object(ENDED, ENDED, phase="Succeeded")
    cluster: Any = MemoryCluster(pod, holder=pod.uid, fails_after=killed_after)
    with pytest.raises(ConnectionError):
        await volumes.settle(cluster, pod, SESSION, pod.end())
    # Whatever is left, its absence or its presence says the same.
    assert (PODS, pod.name) in cluster.objects or cluster.volume.last_end == "pod_ended"
    cluster.fails_after = 1000
    assert await lifecycle.end_pod(cluster, execution_facts())
    assert cluster.volume.last_end == "pod_ended"


@pytest.mark.parametrize(
    ("holder", "ended", "end"),
    [
        ("", "", "pod_never_ran"),
        ("uid-1", "", ""),
        ("uid-1", "uid-1 out_of_memory", "out_of_memory"),
        ("uid-1", "uid-1 whatever an agent cannot write", "pod_ended"),
        ("uid-2", "uid-1 pod_ended", ""),
    ],
)
def test_absent_pod_has_ended_only_if_the_record_says_so(holder: str, ended: str, end: str) -> None:
    cluster = MemoryCluster(holder=holder, ended=ended)
    assert cluster.volume.last_end == end


@pytest.mark.parametrize(
    ("pod", "holder", "taint", "end"),
    [
        (pod_object(RUNNING, ENDED, deleted=True, phase="Running"), "uid-1", False, ""),
        (pod_object(RUNNING, ENDED, deleted=True, phase="Failed"), "uid-1", False, ""),
        (pod_object(RUNNING, ENDED, deleted=True, phase="Running"), "uid-1", True, "node_out_of_service"),
        (pod_object(RUNNING, ENDED, phase="Running"), "uid-1", True, ""),
        (pod_object({"waiting": {}}, RUNNING, deleted=True, phase="Pending"), "", False, "pod_never_ran"),
        (pod_object({"waiting": {}}, RUNNING, phase="Pending"), "", False, ""),
        # It runs, whatever a claim says that somebody has made anew.
        (pod_object(RUNNING, ENDED, deleted=True, phase="Running"), "", False, ""),
        (pod_object(RUNNING, ENDED, deleted=True, phase="Running"), "uid-2", False, ""),
        (pod_object({"waiting": {}}, ENDED, deleted=True, phase="Pending"), "uid-1", False, ""),
    ],
    ids=as_id,
)
async def test_pod_has_ended_by_its_node_s_word_or_a_person_s(pod: Pod, holder: str, taint: bool, end: str) -> None:
    cluster: Any = MemoryCluster(pod, holder=holder)
    cluster.out_of_service = taint
    assert await volumes.proven_end(cluster, pod, cluster.volume) == end


async def test_pod_of_another_execution_is_not_ended() -> None:
    pod = pod_object(RUNNING, ENDED, phase="Running")
    cluster: Any = MemoryCluster(pod, holder=pod.uid)
    assert not await lifecycle.end_pod(cluster, execution_facts(session_id="another", worktree_id=SESSION))
    assert cluster.log == []


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_pod_of_an_agent_is_no_reader_whatever_labels_somebody_gives_it(is_deleted: bool) -> None:
    pod = pod_object(RUNNING, ENDED, phase="Running", deleted=is_deleted)
    pod.entry["metadata"]["labels"] = names.helper_labels(EXECUTION, SESSION)
    cluster: Any = MemoryCluster(pod, holder=pod.uid)
    assert not await lifecycle.end_pod(cluster, execution_facts())
    assert cluster.log == []
    seen = await judge(KubernetesConfig(), execution_facts(), Listing({pod.name: pod}, {}, "namespace-1"), 1.0)
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "foreign")


@pytest.mark.parametrize("holder", ["x'; touch /tmp/y; '", "$(id)", "a b", "uid\n", "\x1b[2K", "", "x" * 10_000])
def test_command_that_a_person_runs_contains_nothing_that_somebody_wrote_into_a_record(holder: str) -> None:
    command = volumes.confirmation("sessions", SESSION, holder)
    words = shlex.split(command)
    assert words[:4] == ["kubectl", "annotate", "pvc", names.claim_name(SESSION)]
    assert not holder or holder not in command
    # What the command records holds, although the record was spoilt.
    recorded = dict(one.split("=", 1) for one in words[4:] if "=" in one)
    cluster = MemoryCluster(holder=recorded[names.HOLDER], ended=recorded[names.ENDED])
    assert cluster.volume.last_end == "end_confirmed"


async def test_vanished_pod_without_a_record_has_not_ended() -> None:
    cluster: Any = MemoryCluster(holder="uid-1")
    assert not await lifecycle.end_pod(cluster, execution_facts())


@pytest.mark.parametrize(
    ("pod", "end"),
    [
        (pod_object(RUNNING, ENDED, deleted=True, phase="Running"), "end_confirmed"),
        (pod_object(RUNNING, ENDED, phase="Failed"), "end_confirmed"),
        (pod_object(RUNNING, ENDED, phase="Running"), ""),
        (pod_object(RUNNING, ENDED, deleted=True, phase="Running", uid="uid-2"), ""),
    ],
    ids=["deleted", "failed", "still serves", "another Pod"],
)
async def test_person_confirms_the_end_of_one_pod_that_no_node_reports(pod: Pod, end: str) -> None:
    cluster: Any = MemoryCluster(pod, holder=pod.uid, ended="uid-1 end_confirmed")
    assert await volumes.proven_end(cluster, pod, cluster.volume) == end


async def test_pod_with_a_confirmed_end_goes_and_what_was_confirmed_stays() -> None:
    pod = pod_object(RUNNING, ENDED, deleted=True, phase="Running")
    cluster: Any = MemoryCluster(pod, holder=pod.uid, ended=f"{pod.uid} end_confirmed")
    assert await lifecycle.end_pod(cluster, execution_facts())
    assert cluster.log == ["release", f"delete {PODS}", f"delete {SECRETS}"]
    assert cluster.volume.last_end == "end_confirmed"


@pytest.mark.parametrize(
    ("state", "uid", "has_ended"),
    [
        ({}, "namespace-1", True),
        ({"namespace": "namespace-1"}, "namespace-1", True),
        ({"namespace": "namespace-2"}, "namespace-1", False),
        ({"namespace": "namespace-1"}, "", False),
        ({"namespace": ""}, "namespace-1", False),
    ],
    ids=["never started", "the same", "another cluster", "not shown now", "not shown at its start"],
)
async def test_cluster_that_has_nothing_of_an_execution_proves_its_end_only_where_it_was_started(
    state: dict[str, str], uid: str, has_ended: bool
) -> None:
    cluster: Any = MemoryCluster()
    cluster.objects, cluster.uid = {}, uid
    facts = execution_facts(state=state)
    assert await lifecycle.end_pod(cluster, facts) is has_ended
    known = Listing(claims={}, namespace_uid=uid)
    seen = await judge(KubernetesConfig(), facts, known, 1.0)
    assert (seen.observed is Observed.DEAD) is has_ended


LOST = {"namespace": "namespace-2", "lost_namespace": "namespace-2"}


@pytest.mark.parametrize(
    ("state", "is_dead"),
    [(LOST, True), ({**LOST, "lost_namespace": "namespace-1"}, False), ({"lost_namespace": "namespace-2"}, True)],
    ids=["declared lost", "of another namespace", "never started"],
)
async def test_declaration_that_a_cluster_is_lost_holds_for_what_was_started_there(
    state: dict[str, str], is_dead: bool
) -> None:
    cluster: Any = MemoryCluster()
    cluster.objects = {}
    facts = execution_facts(state=state)
    seen = await judge(KubernetesConfig(), facts, Listing(claims={}, namespace_uid="namespace-1"), 1.0)
    assert (seen.observed is Observed.DEAD) is is_dead
    assert (seen.reason == "cluster_lost") is (state is LOST)
    assert await lifecycle.end_pod(cluster, facts) is is_dead


@pytest.mark.parametrize("state", [LOST, {"namespace": "namespace-2"}], ids=["declared lost", "not declared"])
async def test_cluster_that_does_not_answer_is_unknown_unless_a_person_has_declared_it_lost(
    state: dict[str, str],
) -> None:
    facts = execution_facts(state=state, config={"kubeconfig": "/nowhere/kubeconfig"})
    seen = (await RUNTIME.observe([facts], timeout=1.0, concurrency=1))[facts.id]
    expected = (Observed.UNKNOWN, "runtime_unavailable")
    if state is LOST:
        expected = (Observed.DEAD, "cluster_lost")
    assert (seen.observed, seen.reason) == expected
    assert await RUNTIME.end(facts) is (state is LOST)


async def test_pod_that_answers_is_alive_whatever_was_declared() -> None:
    pod = pod_object(RUNNING, ENDED, phase="Running")
    known = Listing({pod.name: pod}, {}, "namespace-2")
    seen = await judge(KubernetesConfig(), execution_facts(state=LOST), known, 1.0)
    assert seen.observed is Observed.UNKNOWN, "nothing answers at its address, but it is no proof of an end"
