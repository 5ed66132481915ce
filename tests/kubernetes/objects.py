"""Objects of a cluster as its API server shows them, for tests."""

from __future__ import annotations

from typing import Any

from executors_app.runtimes.kubernetes import names
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.wire.executions import ExecutionFacts, LaunchSpec

EXECUTION, SESSION, TASK = (f"{number}0000000-0000-4000-8000-000000000000" for number in (1, 2, 3))
SECRET = "a-secret-of-the-execution"


def launch_spec(**changes: Any) -> LaunchSpec:
    """Return the spec of a launch."""
    values: dict[str, Any] = {"repository_path": "/srv/repository", "base_branch": "", "auth_token": SECRET}
    return LaunchSpec(EXECUTION, SESSION, TASK, **(values | changes))


def execution_facts(**changes: Any) -> ExecutionFacts:
    """Return the facts of an execution."""
    values: dict[str, Any] = {
        "id": EXECUTION,
        "session_id": SESSION,
        "task_id": TASK,
        "runtime": "kubernetes",
        "host_id": "",
        "agentctl_url": "",
        "auth_token": SECRET,
        "status": "ready",
        "generation": 1,
    }
    return ExecutionFacts(**(values | changes))


def pod_object(
    agentctl: dict[str, Any] | None = None,
    prepare: dict[str, Any] | None = None,
    *,
    last: dict[str, Any] | None = None,
    last_prepare: dict[str, Any] | None = None,
    container: str = "",
    deleted: bool = False,
    node: str = "node1",
    uid: str = "uid-1",
    **status: Any,
) -> Pod:
    """Return a Pod with the states of its containers, as ``{"running": {}}``; ``container``: the id of agentctl's."""
    metadata: dict[str, Any] = {
        "name": names.pod_name(SESSION),
        "uid": uid,
        "resourceVersion": "1",
        "labels": names.execution_labels(EXECUTION, SESSION, TASK),
        "annotations": {},
        "finalizers": [names.FINALIZER],
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    if agentctl is not None:
        about = {"name": names.AGENTCTL, "state": agentctl, "lastState": last or {}}
        status["containerStatuses"] = [about | ({"containerID": container} if container else {})]
    if prepare is not None:
        status["initContainerStatuses"] = [{"name": names.PREPARE, "state": prepare, "lastState": last_prepare or {}}]
    secret = {"secretName": names.secret_name(metadata["labels"], "")}
    spec: dict[str, Any] = {
        "volumes": [{"name": "token", "secret": secret}],
        "initContainers": [{"name": names.PREPARE}],
    }
    if node:
        spec["nodeName"] = node
    return Pod({"metadata": metadata, "spec": spec, "status": status})


def as_id(value: object) -> str:
    """Return a short name of a test's case that is the same in every process, which ids in a Pod are not."""
    if isinstance(value, Pod):
        value = value.entry["status"]
    return str(value)[:100]
