"""Pods that wait for sessions that nobody starts are removed as they were judged, and volumes only if never used."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from executors_app.agentctl_client.cluster_access import ClusterAddress
from executors_app.runtimes.kubernetes import launch, names, unwanted
from executors_app.runtimes.kubernetes.cluster import CLAIMS, PODS
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.exit_events import Namespace
from executors_app.runtimes.kubernetes.words import ClusterUnavailable, ConflictError
from executors_app.wire.errors import LaunchFailed
from sessions_app.recovery.jobs import find_unwanted
from tests.kubernetes.objects import EXECUTION, SESSION, TASK, launch_spec, pod_object
from tests.kubernetes.test_volumes import RUNNING, MemoryCluster
from tests.supervisor.rows import change, execution_of, running_session

PLACE = Namespace(ClusterAddress(), "sessions")
PENDING = pod_object(node="", phase="Pending")
STARTED = pod_object(RUNNING, {"terminated": {"exitCode": 0}}, container="c1", phase="Running")


class OwnCluster(MemoryCluster):
    """A cluster whose claim has this deployment's labels."""

    def __init__(self, *pods: Any, **record: Any):
        super().__init__(*pods, **record)
        about = self.objects[CLAIMS, names.claim_name(SESSION)]["metadata"]
        about |= {"labels": names.execution_labels(EXECUTION, SESSION, TASK), "uid": "claim-1"}


@pytest.fixture
def removing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that removes what is unwanted of a cluster."""

    async def remove(cluster: Any, *, is_closed: bool = True) -> None:
        @asynccontextmanager
        async def open_it(*_: object) -> AsyncIterator[Any]:
            yield cluster

        async def find(owners: Collection[str]) -> dict[str, bool]:
            return dict.fromkeys(owners, is_closed)

        monkeypatch.setattr(unwanted, "open_cluster", open_it)
        await unwanted.remove_unwanted(PLACE, find)

    return remove


@pytest.mark.parametrize(
    ("holder", "is_closed", "is_kept"),
    [("", True, False), ("", False, True), ("uid-of-an-earlier-pod", True, True)],
    ids=["never used", "stopped", "has work"],
)
async def test_volume_goes_only_if_it_was_never_used_and_its_session_is_closed(
    removing: Any, holder: str, is_closed: bool, is_kept: bool
) -> None:
    cluster = OwnCluster(PENDING, holder=holder)
    await removing(cluster, is_closed=is_closed)
    assert (PODS, PENDING.name) not in cluster.objects
    assert ((CLAIMS, names.claim_name(SESSION)) in cluster.objects) is is_kept


async def test_pod_that_may_have_its_files_is_left_to_its_stop(removing: Any) -> None:
    waiting = pod_object({"waiting": {}}, RUNNING)
    cluster = OwnCluster(waiting, holder=waiting.uid)
    await removing(cluster)
    assert cluster.log == []


class ChangingCluster(OwnCluster):
    """A cluster in which the Pod starts after it was listed."""

    async def delete_unchanged(self, kind: str, entry: Any) -> None:
        """Start the Pod before it can be removed."""
        changed = copy.deepcopy(dict(STARTED.entry))
        changed["metadata"]["resourceVersion"] = "2"
        self.objects[PODS, STARTED.name] = changed
        await super().delete_unchanged(kind, entry)


async def test_pod_that_starts_meanwhile_is_kept(removing: Any) -> None:
    cluster = ChangingCluster(PENDING)
    await removing(cluster)
    assert cluster.log == []
    assert (CLAIMS, names.claim_name(SESSION)) in cluster.objects


class SilentCluster(OwnCluster):
    """A cluster that answers only at first."""

    async def find(self, kind: str, name: str) -> Any:
        """Give no answer."""
        raise ClusterUnavailable("nobody answers")


async def test_silent_cluster_is_tried_again_later(removing: Any) -> None:
    cluster = SilentCluster(PENDING)
    await removing(cluster)
    assert cluster.log == []


async def test_start_gives_no_files_to_a_volume_that_is_being_removed() -> None:
    cluster: Any = OwnCluster(PENDING)
    cluster.objects[CLAIMS, names.claim_name(SESSION)]["metadata"]["deletionTimestamp"] = "now"
    with pytest.raises(LaunchFailed, match="was removed while it started"):
        await launch._hold(cluster, KubernetesConfig(), launch_spec(), PENDING)
    assert cluster.volume.holder == ""


async def test_volume_that_a_start_uses_meanwhile_is_kept() -> None:
    cluster: Any = OwnCluster()
    found = await cluster.find(CLAIMS, names.claim_name(SESSION))
    cluster.objects[CLAIMS, names.claim_name(SESSION)]["metadata"]["resourceVersion"] = "2"
    with pytest.raises(ConflictError):
        await cluster.delete_unchanged(CLAIMS, found)


NOBODY = "90000000-0000-4000-8000-000000000000"
SESSIONS: Final[dict[str, tuple[dict[str, Any], str, bool | None]]] = {
    "running": ({}, "ready", None),
    "starting": ({"state": "STARTING"}, "starting", None),
    "asleep or backing off": ({"state": "ERROR"}, "error", None),
    "given up": ({"state": "FAILED"}, "error", False),
    "stopped": ({"desired_state": "stopped"}, "stopped", False),
    "stop under way": ({"desired_state": "stopped"}, "ready", None),
    "cancelled": ({"desired_state": "stopped", "state": "CANCELLED"}, "stopped", True),
    "completed": ({"desired_state": "stopped", "state": "COMPLETED"}, "error", True),
}


@pytest.mark.django_db
@pytest.mark.parametrize("case", SESSIONS)
def test_only_sessions_that_nobody_starts_are_unwanted(case: str) -> None:
    fields, status, closed = SESSIONS[case]
    session = running_session(**fields)
    change(execution_of(session), status=status)
    expected = {} if closed is None else {str(session.id): closed}
    assert find_unwanted([str(session.id), "no id"]) == expected


@pytest.mark.django_db
def test_start_that_is_requested_keeps_what_waits_for_it() -> None:
    session = running_session(state="FAILED")
    change(execution_of(session), status="error")
    session.intents.create(kind="start", payload={})
    assert find_unwanted([str(session.id)]) == {}


@pytest.mark.django_db
def test_deleted_session_needs_nothing(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(2):
        assert find_unwanted([NOBODY]) == {NOBODY: True}
