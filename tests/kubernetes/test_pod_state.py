"""What proves the end of a Pod, and why one does not start."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.runtimes.kubernetes import names, words
from executors_app.runtimes.kubernetes.pod_state import Pod
from tests.kubernetes import record
from tests.kubernetes.objects import SESSION, as_id, pod_object

RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:10Z"}}
WAITING: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
DONE: dict[str, Any] = {"terminated": {"exitCode": 0}}


def failed(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


NOT_SEEN = failed(137, "ContainerStatusUnknown")
"""What a node reports of a container whose end it has not seen."""


@pytest.mark.parametrize(
    ("pod", "end"),
    [
        (pod_object(failed(137), DONE, phase="Failed"), "pod_ended"),
        (pod_object(DONE, DONE, phase="Succeeded"), "pod_ended"),
        (pod_object(failed(137, "OOMKilled"), DONE, phase="Failed"), "out_of_memory"),
        (pod_object(failed(137), DONE, phase="Failed", reason="Evicted"), "pod_evicted"),
        (pod_object(failed(143), DONE, phase="Running", deleted=True), "pod_ended"),
        (pod_object(WAITING, failed(2), phase="Failed"), "pod_never_ran"),
        (pod_object(node="", deleted=True, phase="Pending"), "pod_never_ran"),
        (pod_object(WAITING, DONE, phase="Failed", deleted=True, last=failed(137)), "pod_ended"),
        # The node has not seen the end, but its engine has no such container any more.
        (pod_object(WAITING, DONE, phase="Failed", deleted=True, last=NOT_SEEN), "pod_ended"),
        (pod_object(WAITING, DONE, phase="Failed", last=NOT_SEEN), "pod_ended"),
        (pod_object(NOT_SEEN, DONE, phase="Failed"), "pod_ended"),
        (pod_object(NOT_SEEN, DONE, phase="Failed", reason="Evicted", last=NOT_SEEN), "pod_evicted"),
        (pod_object(WAITING, WAITING, phase="Failed", deleted=True, last_prepare=NOT_SEEN), "pod_never_ran"),
        # Its engine has the container and cannot tell its state, or the node would start it again.
        (pod_object(NOT_SEEN, DONE, phase="Failed", container="containerd://1"), ""),
        (pod_object(NOT_SEEN, DONE, phase="Failed", container="containerd://1", deleted=True), ""),
        (pod_object(WAITING, DONE, phase="Pending", last=NOT_SEEN), ""),
        (pod_object(WAITING, WAITING, phase="Pending", last_prepare=NOT_SEEN), ""),
        # Nobody has seen the containers end in any of these.
        (pod_object(RUNNING, DONE, phase="Running"), ""),
        (pod_object(RUNNING, DONE, phase="Running", deleted=True), ""),
        (pod_object(RUNNING, DONE, phase="Running", last=failed(1)), ""),
        (pod_object(RUNNING, DONE, phase="Failed", reason="NodeLost"), ""),
        (pod_object(RUNNING, DONE, phase="Failed", conditions=[{"type": "DisruptionTarget"}], deleted=True), ""),
        (pod_object(phase="Failed", reason="Evicted"), ""),
        (pod_object(phase="Failed", reason="OutOfmemory"), ""),
        (pod_object(RUNNING, DONE, phase="Unknown", reason="NodeLost"), ""),
        (pod_object(WAITING, DONE, phase="Pending"), ""),
        (pod_object(WAITING, RUNNING, phase="Pending"), ""),
        (pod_object(WAITING, DONE, phase="Pending", deleted=True), ""),
        (pod_object(node="", phase="Pending"), ""),
        (pod_object(), ""),
    ],
    ids=as_id,
)
def test_only_the_word_of_the_node_proves_an_end(pod: Pod, end: str) -> None:
    assert pod.end() == end


def test_recorded_pod_whose_end_its_node_did_not_see_has_ended() -> None:
    answers = [step.get("answer") for step in record.read("kept_by_finalizer")]
    pods = [Pod(one) for one in answers if isinstance(one, dict) and "ContainerStatusUnknown" in str(one)]
    assert pods
    assert {pod.end() for pod in pods} == {"pod_ended"}


def test_pod_that_its_node_did_not_accept_is_refused() -> None:
    rejected = pod_object(phase="Failed", reason="OutOfmemory", message="from the node").rejection()
    assert isinstance(rejected, words.PodRefused)
    assert rejected.details["for_staff"] == "OutOfmemory: from the node"
    assert pod_object(RUNNING, DONE, phase="Failed", reason="NodeLost").rejection() is None
    assert pod_object(phase="Pending").rejection() is None


def unscheduled(message: str) -> Pod:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod_object(node="", phase="Pending", conditions=[condition])


def waiting(reason: str) -> Pod:
    return pod_object(WAITING, {"waiting": {"reason": reason, "message": "from the node"}}, phase="Pending")


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        (unscheduled("0/2 nodes are available: 2 Insufficient memory."), "pod_unschedulable"),
        (unscheduled("pod has unbound immediate PersistentVolumeClaims."), "pod_volume_not_bound"),
        (waiting("ErrImagePull"), "pod_image_not_pulled"),
        (waiting("ImagePullBackOff"), "pod_image_not_pulled"),
        (waiting("ErrImageNeverPull"), "pod_image_not_pulled"),
        (waiting("CreateContainerConfigError"), "pod_refused"),
        (waiting("PodInitializing"), None),
        (pod_object(RUNNING, DONE, phase="Running"), None),
    ],
    ids=as_id,
)
def test_obstacle_has_a_code_and_the_fix_and_its_details_are_for_staff(pod: Pod, code: str | None) -> None:
    obstacle = pod.obstacle("kandev")
    assert getattr(obstacle, "code", None) == code
    if obstacle is not None:
        assert "from the node" not in obstacle.message
        assert obstacle.details["for_staff"]


@pytest.mark.parametrize(
    ("said", "may_be_deleted"),
    [
        ("pod has unbound immediate PersistentVolumeClaims.", True),
        ("0/2 nodes are available: 2 node(s) had volume node affinity conflict.", False),
    ],
)
def test_only_a_claim_without_a_volume_is_proposed_for_deletion(said: str, may_be_deleted: bool) -> None:
    obstacle = unscheduled(said).obstacle("kandev")
    assert isinstance(obstacle, words.PodVolumeNotBound)
    command = f"kubectl delete pvc {names.claim_name(SESSION)} --namespace kandev"
    assert obstacle.message.endswith(command) is may_be_deleted


def test_strange_object_is_read_without_an_error() -> None:
    odd = Pod(
        {"metadata": {"name": "x", "uid": "y", "labels": None}, "spec": None, "status": {"containerStatuses": None}}
    )
    assert (odd.end(), odd.is_up, odd.address, odd.execution_id, odd.age()) == ("", False, "", "", 0.0)


@pytest.mark.parametrize(
    ("status", "said", "error", "sentence"),
    [
        (401, "Unauthorized", words.ClusterLoginRefused, "does not accept the credentials"),
        (403, 'pods is forbidden: User "x" cannot create', words.ClusterRoleTooSmall, "may not create pods"),
        (403, "exceeded quota: small, requested: pods=1", words.ClusterQuotaExceeded, "The quota small of"),
        (403, 'violates PodSecurity "restricted:latest"', words.PodRefused, "level baseline"),
        (403, "forbidden: ... because it is being terminated", words.ClusterNamespaceMissing, "is being deleted"),
        (404, "not found", words.NotFoundError, "no such object"),
        (409, "already exists", words.ConflictError, "exists already"),
        (410, "too old resource version", words.GoneError, "too old"),
        (422, "invalid", words.PodRefused, "Check the settings"),
        (429, "slow down", words.ClusterUnavailable, "HTTP 429"),
        (500, "broken", words.ClusterUnavailable, "HTTP 500"),
    ],
)
def test_answer_of_a_cluster_is_said_in_words(status: int, said: str, error: type[Any], sentence: str) -> None:
    refused: Any = words.refusal(status, said, "create pods", "kandev")
    assert refused.__class__ is error
    assert sentence in refused.message
    assert refused.message_for_staff.endswith(said)


def test_text_of_a_cluster_is_cut_and_has_no_control_characters() -> None:
    assert words.shorten("a\x1b[31m\nb" + "x" * 10_000).startswith("a [31m b")
    assert len(words.shorten("x" * 10_000)) == words.TEXT_LIMIT
