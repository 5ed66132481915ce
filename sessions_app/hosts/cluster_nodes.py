"""The nodes of clusters on which sessions run: only shown, because their cluster places and drains what is there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from django.db.models import Count, F, Q, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import NODE, ExecutorStatus
from sessions_app.hosts.supervision import LIVE
from sessions_app.recovery.rules.resumability import UNREACHABLE

MAX_NODES: Final = 200
WHY_FORCE: Final = (
    "The cluster drains its nodes itself. Pods of sessions belong to no controller, so it refuses without --force. "
    "Each one saves its work before it ends, and its session is resumed on another node."
)
_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of a cluster, as the Pods of an executor name it."""

    name: str
    executor: str
    """Name of the executor; empty if that was deleted."""
    sessions: int
    """Agents on it that start or run, or may still run because they do not answer."""

    @property
    def drain_command(self) -> str:
        """The command that drains it; empty for a name that no node can have."""
        return drain_command(self.name)


def drain_command(name: str) -> str:
    """Return the command that drains a node; empty for a name that no node can have, which no shell may see."""
    if not _NAME.fullmatch(name):
        return ""
    return f"kubectl drain --force --delete-emptydir-data --ignore-daemonsets {name}"


def list_cluster_nodes(name: str = "") -> list[ClusterNode]:
    """Return the nodes on which sessions run, or only the one called ``name``; one query.

    They are known from the Pods alone: no right in the whole cluster is needed, and a node without sessions is not
    shown.
    """
    rows = ExecutorRunning.objects.filter(session__agent_execution_id=F("id"))
    rows = rows.filter(Q(status__in=LIVE) | Q(status=ExecutorStatus.ERROR, error_code=UNREACHABLE))
    # The cast makes its comparisons those of texts: SQLite would read what it is compared with as JSON.
    nodes = rows.annotate(node=Cast(KeyTextTransform(NODE, "state"), TextField())).exclude(node=None).exclude(node="")
    if name:
        nodes = nodes.filter(node=name)
    counted = nodes.order_by("node", "executor__name").values_list("node", "executor__name").annotate(all=Count("id"))
    return [ClusterNode(node, executor or "", count) for node, executor, count in counted[:MAX_NODES]]
