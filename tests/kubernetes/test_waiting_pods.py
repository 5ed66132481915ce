"""Pods that wait to start are removed only as they were judged, and objects by the ids in their names."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from executors_app.runtimes.kubernetes import launch, lifecycle, names, waits, words
from executors_app.runtimes.kubernetes.cluster import CLAIMS, PODS, SECRETS
from executors_app.runtimes.kubernetes.pod_state import Pod
from tests.kubernetes.objects import EXECUTION, SESSION, TASK, launch_spec, pod_object
from tests.kubernetes.test_volumes import RUNNING, MemoryCluster

PENDING = pod_object(node="", phase="Pending")
STARTED = pod_object(RUNNING, {"terminated": {"exitCode": 0}}, container="c1", phase="Running")


def _unscheduled(said: str) -> Pod:
    """Return a Pod that was made just now and for which the scheduler has found no node."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    pod = pod_object(node="", phase="Pending", conditions=[condition])
    metadata = {**pod.entry["metadata"], "creationTimestamp": datetime.now(UTC).isoformat()}
    return Pod({**pod.entry, "metadata": metadata})


class ChangingCluster(MemoryCluster):
    """A cluster in which the Pod changes between the last reading and its removal."""

    def __init__(self, pod: Pod, becomes: Pod):
        super().__init__(pod)
        self._becomes: Pod | None = becomes

    async def delete_unchanged(self, kind: str, entry: Any) -> None:
        """Change the Pod before the first removal."""
        if self._becomes is not None:
            changed = copy.deepcopy(dict(self._becomes.entry))
            changed["metadata"]["resourceVersion"] = "2"
            self.objects[PODS, changed["metadata"]["name"]] = changed
            self._becomes = None
        await super().delete_unchanged(kind, entry)


async def test_pod_that_starts_at_the_end_of_its_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "START_TIMEOUT", 0.0)
    cluster: Any = ChangingCluster(PENDING, STARTED)
    pod = await launch._wait_for_seed_time(cluster, launch_spec(), PENDING)
    assert pod.is_up
    assert f"delete {PODS}" not in cluster.log


async def test_pod_that_never_starts_is_removed_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "START_TIMEOUT", 0.0)
    cluster: Any = ChangingCluster(PENDING, pod_object(node="", phase="Pending", message="changed"))
    with pytest.raises(words.PodNotReady):
        await launch._wait_for_seed_time(cluster, launch_spec(), PENDING)
    assert cluster.objects[PODS, PENDING.name]["metadata"]["deletionTimestamp"]


IMAGE_GONE = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
WAITS = {
    "new": (pod_object(node="", phase="Pending"), "pod_pending", False),
    "no room": (_unscheduled("0/2 nodes are available: 2 Insufficient memory."), "pod_unschedulable", True),
    "no words": (_unscheduled(""), "pod_unschedulable", True),
    "no volume": (_unscheduled("pod has unbound immediate PersistentVolumeClaims"), "pod_volume_not_bound", True),
    "on a node": (pod_object(phase="Pending"), "pod_prepared", False),
    "no image": (pod_object({"waiting": {}}, IMAGE_GONE, phase="Pending"), "pod_image_not_pulled", True),
}


@pytest.mark.parametrize("case", WAITS)
def test_pod_that_waits_says_for_what_at_once(case: str) -> None:
    pod, code, is_obstacle = WAITS[case]
    wait = waits.wait_of(pod)
    assert (wait.code, wait.is_obstacle) == (code, is_obstacle)
    assert wait.text.count("\n") == 0


def test_words_of_the_cluster_are_quoted_within_a_limit() -> None:
    said = waits.wait_of(_unscheduled("0/2 nodes are available.\n\x1b[31m" + "x" * 10_000)).text
    assert said.startswith("No node can take its Pod yet: 0/2 nodes are available.")
    assert len(said) < 400
    assert said.isprintable()


async def test_launch_reports_what_its_pod_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_POLL", 0.0)
    seen: list[str] = []
    cluster: Any = MemoryCluster(STARTED)
    waiting = _unscheduled("0/2 nodes are available.")  # made now: one that waits long is given up
    await launch._wait_for_seed_time(cluster, launch_spec(), waiting, lambda wait: seen.append(wait.code))
    assert seen == ["pod_unschedulable"]


async def test_pod_of_older_settings_that_starts_meanwhile_is_kept() -> None:
    cluster: Any = ChangingCluster(PENDING, STARTED)
    with pytest.raises(words.PodStillEnding, match="still running"):
        await launch._remove_waiting(cluster, PENDING)
    assert f"delete {PODS}" not in cluster.log


@pytest.mark.parametrize("known", [EXECUTION, SESSION])
@pytest.mark.parametrize("kind", [PODS, CLAIMS, SECRETS])
async def test_object_whose_label_was_changed_still_belongs_to_whom_its_name_says(kind: str, known: str) -> None:
    made = {
        PODS: names.pod_name(SESSION),
        CLAIMS: names.claim_name(SESSION),
        SECRETS: names.secret_name(names.execution_labels(EXECUTION, SESSION, TASK), "0" * 32),
    }
    labels = names.execution_labels("90000000-0000-4000-8000-000000000000", SESSION, TASK)
    cluster: Any = MemoryCluster()
    cluster.objects = {(kind, made[kind]): {"metadata": {"name": made[kind], "uid": "1", "labels": labels}}}
    by_name = known == EXECUTION if kind == SECRETS else known == SESSION
    listed = await lifecycle.list_orphans(cluster, {known})
    assert (listed == []) is by_name
