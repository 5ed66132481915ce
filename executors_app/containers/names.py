"""Names and labels of a session's container: they follow from the ids and are the proof of ownership (rule 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from django.conf import settings

MANAGED: Final = "kandev.managed"
SESSION: Final = "kandev.session"
TASK: Final = "kandev.task"
EXECUTION: Final = "kandev.execution"
DEPLOYMENT: Final = "kandev.deployment"
HELPER: Final = "kandev.helper"
"""On a short-lived container that does something to the volumes of the execution that it names."""
SPEC: Final = "kandev.spec"
"""What it was made from; a stopped one that was made from something else is made anew."""


def name_of(execution_id: str) -> str:
    """Of the container, and of its network."""
    return f"kandev-{execution_id}"


def ours() -> dict[str, str]:
    """The labels of all containers of this deployment; another one may use the same engine."""
    place = str(Path(settings.KANDEV_DATA_DIR).resolve())
    return {MANAGED: "true", DEPLOYMENT: hashlib.sha256(place.encode()).hexdigest()[:16]}


def labels_of(execution_id: str, session_id: str, task_id: str) -> dict[str, str]:
    """The labels of one execution's container."""
    return {**ours(), EXECUTION: execution_id, SESSION: session_id, TASK: task_id}


def helper_labels_of(execution_id: str, session_id: str) -> dict[str, str]:
    """Of a container beside the execution's own, which is never taken for it."""
    return {**ours(), HELPER: execution_id, SESSION: session_id}


def is_owned(labels: Mapping[str, str], execution_id: str, session_id: str) -> bool:
    """Whether a container is that execution's and was made by this deployment."""
    wanted = {**ours(), EXECUTION: execution_id, SESSION: session_id}
    return all(labels.get(name) == value for name, value in wanted.items())


def is_helper(labels: Mapping[str, str]) -> bool:
    """Whether a container of ours is a short-lived one beside an execution's own."""
    return HELPER in labels and EXECUTION not in labels


def execution_of(labels: Mapping[str, str]) -> str:
    """The execution that a container of ours is of, or is at work for; empty for none."""
    return labels.get(EXECUTION) or labels.get(HELPER, "")
