"""A cluster that is gone for good is declared lost by staff, and only while nothing of it is reached."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.test import Client
from rest_framework.test import APIClient

from executors_app.models import Executor
from executors_app.runtimes.kubernetes.runtime import RUNTIME
from executors_app.wire.errors import RuntimeUnavailable
from sessions_app.accounts.audit import recent_changes
from sessions_app.hosts.lost_clusters import declare_lost, list_unreached_clusters
from sessions_app.kernel.services.errors import ClusterAnswers, NotFound
from sessions_app.models import TaskSession
from tests.hosts.test_command import run
from tests.supervisor.rows import execution_of, make_user, running_session

pytestmark = pytest.mark.django_db
GONE = "11111111-2222-4333-8444-555555555555"
UNREACHED = {"status": "error", "error_code": "unreachable"}


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what clusters answer, by their kubeconfig; without an entry, none does."""
    answers: dict[str, str] = {}

    async def place_answers(config: dict[str, Any], place: str) -> bool:
        if not answers:
            raise RuntimeUnavailable("The cluster cannot be reached.")
        return answers["uid"] == place

    monkeypatch.setattr(RUNTIME, "place_answers", place_answers)
    return answers


def cluster(name: str = "Cluster") -> Executor:
    made, _ = Executor.objects.get_or_create(name=name, defaults={"runtime": "kubernetes"})
    return made


def started_in(namespace: str, **execution: Any) -> TaskSession:
    """Return a session of the executor called Cluster that was started in a namespace."""
    values = {"executor": cluster(), "runtime": "kubernetes", **execution}
    return running_session(execution={"state": {"namespace": namespace, "node": "n"}, **values})


def state_of(session: TaskSession) -> dict[str, Any]:
    return dict(execution_of(session).state)


def staff() -> User:
    user = make_user()
    user.is_staff = True
    user.save()
    return user


def test_only_clusters_of_which_nothing_is_reached_are_listed(django_assert_num_queries: Any) -> None:
    started_in(GONE, **UNREACHED)
    started_in(GONE, **UNREACHED)
    started_in("reached", **UNREACHED)
    started_in("reached", status="ready")
    started_in("", **UNREACHED)
    started_in("stopped", status="stopped")
    running_session(execution=UNREACHED)
    with django_assert_num_queries(1):
        found = list_unreached_clusters()
    assert [(one.executor, one.namespace, one.sessions) for one in found] == [("Cluster", "", 1), ("Cluster", GONE, 2)]
    assert list_unreached_clusters("another") == []


def test_declaration_is_recorded_with_its_sessions_and_in_the_history() -> None:
    lost, other = started_in(GONE, **UNREACHED), started_in("another", **UNREACHED)
    by = staff()
    assert declare_lost(cluster().pk, GONE, by) == 1
    assert state_of(lost) == {"namespace": GONE, "node": "n", "lost_namespace": GONE}
    assert "lost_namespace" not in state_of(other)
    assert [one.namespace for one in list_unreached_clusters()] == ["another"]
    (change,) = recent_changes(cluster())
    assert (change.user, GONE in change.change_message) == (by, True)
    with pytest.raises(NotFound):
        declare_lost(cluster().pk, GONE, by)


@pytest.mark.parametrize("namespace", [GONE, ""])
def test_cluster_whose_namespace_answers_is_not_lost(answering: dict[str, str], namespace: str) -> None:
    session = started_in(namespace, **UNREACHED)
    answering["uid"] = namespace
    with pytest.raises(ClusterAnswers):
        declare_lost(cluster().pk, namespace, None)
    assert "lost_namespace" not in state_of(session)


def test_cluster_that_this_process_cannot_ask_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    session = started_in(GONE, **UNREACHED)

    async def place_answers(*_: Any) -> bool:
        raise RuntimeUnavailable("No file descriptors are left.") from OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(RUNTIME, "place_answers", place_answers)
    with pytest.raises(ClusterAnswers, match="could not be asked"):
        declare_lost(cluster().pk, GONE, None)
    assert "lost_namespace" not in state_of(session)


def test_another_cluster_that_answers_in_its_place_proves_nothing(answering: dict[str, str]) -> None:
    started_in(GONE, **UNREACHED)
    answering["uid"] = "the new one"
    assert declare_lost(cluster().pk, GONE, None) == 1


def test_cluster_of_which_a_session_is_reached_is_not_lost() -> None:
    session = started_in(GONE, **UNREACHED)
    started_in(GONE, status="ready")
    with pytest.raises(ClusterAnswers):
        declare_lost(cluster().pk, GONE, None)
    assert "lost_namespace" not in state_of(session)


def test_command_declares_it_after_a_confirmation() -> None:
    session = started_in(GONE, **UNREACHED)
    with pytest.raises(CommandError, match="Say --yes"):
        run("lost-cluster", "Cluster")
    with pytest.raises(CommandError, match="No session waits") as error:
        run("lost-cluster", "another", "--yes")
    assert error.value.returncode == 2
    assert run("lost-cluster", "Cluster", "--yes").startswith("The cluster of Cluster is lost. 1 session counts")
    assert state_of(session)["lost_namespace"] == GONE


def test_staff_see_it_on_the_page_and_declare_it_there(client: Client) -> None:
    session = started_in(GONE, **UNREACHED)
    client.force_login(staff())
    assert GONE in client.get("/system/").content.decode()
    answer = client.post(f"/system/clusters/{cluster().pk}/lost/", {"namespace": GONE}, follow=True)
    page = answer.content.decode()
    assert "The cluster is lost. 1 session counts as ended" in page
    assert GONE not in page
    assert state_of(session)["lost_namespace"] == GONE


def test_staff_see_it_in_the_api_and_declare_it_there(answering: dict[str, str]) -> None:
    started_in(GONE, **UNREACHED)
    api = APIClient()
    api.force_authenticate(staff())
    (listed,) = api.get("/api/v1/hosts/clusters/").json()["results"]
    wanted = {"executor": str(cluster().pk), "namespace": GONE}
    assert listed == {**wanted, "executor_name": "Cluster", "sessions": 1}
    answering["uid"] = GONE
    refused = api.post("/api/v1/hosts/clusters/lost/", wanted, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "cluster_answers")
    answering["uid"] = "another"
    declared = api.post("/api/v1/hosts/clusters/lost/", wanted, format="json")
    assert (declared.status_code, declared.json()) == (200, {"sessions": 1})
