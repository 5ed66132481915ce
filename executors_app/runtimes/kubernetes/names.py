"""The names, labels and annotations of what belongs to a session in a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeGuard

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
USER: Final = "kandev.user"
"""Annotation of a volume claim with the ``UID:GID`` to which its files were given by the last start."""
ENDED: Final = "kandev.ended"
"""Annotation of a volume claim: the uid of a Pod whose end was seen, and how it ended."""
FINALIZER: Final = "kandev/end-seen"
"""Keeps a Pod's object until its end was seen and recorded, whoever deletes it and however."""

TOKEN: Final = "token"  # noqa: S105  (a name)
"""The name of the Pod's volume from its Secret, and of the key in that."""
AGENTCTL: Final = "agentctl"
"""The name of the container in which agentctl and agents run."""
PREPARE: Final = "prepare"
"""The name of the init container that prepares the volume and receives the seed."""


_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NONCE: Final = re.compile(r"[0-9a-f]{32}")


def pod_name(owner_id: str) -> str:
    """Return the name of the only Pod that may use a volume; ``owner_id`` is the session that owns the worktree."""
    return f"kandev-{owner_id}"


def owner_of_pod(name: str) -> str:
    """Return the session that owns the volume of a Pod with this name."""
    return name.removeprefix(pod_name(""))


def claim_name(owner_id: str) -> str:
    """Return the name of the claim of a session's volume."""
    return f"kandev-work-{owner_id}"


def ids_in(name: str) -> list[str]:
    """Return the ids in the name of one of our objects: of the session that owns a volume, or of an execution.

    A name can never change, while anybody with rights in the namespace can change labels.
    """
    return _ID.findall(name)


def secret_name(labels: Mapping[str, str], nonce: str) -> str:
    """Return the name of the Secret with the token of one launch, whose Pod has these labels.

    Each launch has its own, named for the nonce of its token: whatever else is started or ended at the same time, no
    Pod ever reads the token of another one, and none loses its own.
    """
    return f"{_secret_prefix(labels)}-{nonce}" if nonce else _secret_prefix(labels)


def is_secret_of(labels: Mapping[str, str], name: object) -> bool:
    """Whether a Secret of this name can be that of a Pod with these labels; earlier ones have no nonce in it."""
    prefix = _secret_prefix(labels)
    if not prefix or not isinstance(name, str) or not name.startswith(prefix):
        return False
    rest = name.removeprefix(prefix)
    return not rest or (rest.startswith("-") and is_nonce(rest[1:]))


def is_nonce(value: object) -> TypeGuard[str]:
    """Whether this is the nonce of a token."""
    return isinstance(value, str) and _NONCE.fullmatch(value) is not None


def _secret_prefix(labels: Mapping[str, str]) -> str:
    if HELPER_LABEL in labels:
        return f"kandev-read-{labels[HELPER_LABEL]}"
    if EXECUTION_LABEL in labels:
        return f"kandev-{labels[EXECUTION_LABEL]}"
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


def selector(labels: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the label selector of everything of this deployment, or of what also has ``labels``."""
    return ",".join(f"{name}={value}" for name, value in {**deployment_labels(), **labels}.items())


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
