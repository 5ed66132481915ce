"""The names, labels and annotations of what belongs to a session in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executors_app.runtimes.deployment_labels import deployment_labels

EXECUTION_LABEL: Final = "kandev.execution"
SESSION_LABEL: Final = "kandev.session"
TASK_LABEL: Final = "kandev.task"
HELPER_LABEL: Final = "kandev.helper"
"""Label of a Pod that only reads the volume of an execution."""
LAUNCH: Final = "kandev.launch"
"""Annotation of a Pod with the nonce of its token: the token itself follows from the execution's secret."""
MADE_FROM: Final = "kandev.made-from"
"""Annotation of a Pod with a hash of its settings: one that still waits to start is replaced if they have changed."""
HOLDER: Final = "kandev.pod"
"""Annotation of a volume claim with the uid of the last Pod that was allowed to write to it."""
ENDED: Final = "kandev.ended"
"""Annotation of a volume claim: the uid of a Pod whose end was seen, and how it ended."""
FINALIZER: Final = "kandev/end-seen"
"""Keeps a Pod's object until its end was seen and recorded, whoever deletes it and however."""

AGENTCTL: Final = "agentctl"
"""The name of the container in which agentctl and agents run."""
PREPARE: Final = "prepare"
"""The name of the init container that prepares the volume and receives the seed."""


def pod_name(owner_id: str) -> str:
    """Return the name of the only Pod that may use a volume; ``owner_id`` is the session that owns the worktree."""
    return f"kandev-{owner_id}"


def owner_of_pod(name: str) -> str:
    """Return the session that owns the volume of a Pod with this name."""
    return name.removeprefix(pod_name(""))


def claim_name(owner_id: str) -> str:
    """Return the name of the claim of a session's volume."""
    return f"kandev-work-{owner_id}"


def secret_name(execution_id: str) -> str:
    """Return the name of the Secret with an execution's token."""
    return f"kandev-{execution_id}"


def secret_of(labels: Mapping[str, str]) -> str:
    """Return the name of the Secret of a Pod with these labels; empty if it has none.

    One that reads a volume has a Secret of its own, so that it never takes that of a Pod that is about to start.
    """
    if HELPER_LABEL in labels:
        return f"kandev-read-{labels[HELPER_LABEL]}"
    if EXECUTION_LABEL in labels:
        return secret_name(labels[EXECUTION_LABEL])
    return ""


def execution_labels(execution_id: str, session_id: str, task_id: str) -> dict[str, str]:
    """Return the labels of an execution's Pod, Secret and volume claim."""
    labels = {**deployment_labels(), EXECUTION_LABEL: execution_id, SESSION_LABEL: session_id}
    if task_id:
        labels[TASK_LABEL] = task_id
    return labels


def helper_labels(execution_id: str, session_id: str) -> dict[str, str]:
    """Return the labels of a Pod that reads a volume, which is never mistaken for the execution's own."""
    return {**deployment_labels(), HELPER_LABEL: execution_id, SESSION_LABEL: session_id}


def selector() -> str:
    """Return the label selector of everything of this deployment."""
    return ",".join(f"{name}={value}" for name, value in deployment_labels().items())


def labels_of(entry: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of an object."""
    return (entry.get("metadata") or {}).get("labels") or {}


def annotations_of(entry: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the annotations of an object."""
    return (entry.get("metadata") or {}).get("annotations") or {}


def is_ours(entry: Mapping[str, Any]) -> bool:
    """Whether an object has this deployment's labels."""
    labels = labels_of(entry)
    return all(labels.get(name) == value for name, value in deployment_labels().items())
