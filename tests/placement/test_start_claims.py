"""A supervisor claims only starts of its host whose repository it has, and a start that nobody can claim says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors_app.models import Executor
from sessions_app.hosts import heartbeats
from sessions_app.hosts.models import Host
from sessions_app.models import Intent, RepositorySighting, Supervisor, session_transaction
from sessions_app.placement import sightings, start_claims
from sessions_app.placement.rules.claims import NO_SUPERVISOR, NO_SUPERVISOR_OF_WORKTREE
from sessions_app.prompts import overdue
from sessions_app.sessions.services.status import session_status
from sessions_app.supervisor import leases
from tests.placement.hosts import act_on, add_supervisor, asks, open_start
from tests.supervisor.rows import change, execution_of, fresh, make_session, running_session

pytestmark = pytest.mark.django_db

MISSING = "No host of this executor has the repository /srv/repository. It starts when one of them has it."


def test_embedded_database_asks_nothing(django_assert_num_queries: pytest.FixtureRequest) -> None:
    session = make_session()
    if leases.is_shared_database():
        pytest.skip("PostgreSQL is shared")
    start = open_start(session)
    with django_assert_num_queries(0):  # type: ignore[operator]
        assert start_claims.is_ours(session.id, start.id)


def test_only_supervisor_takes_every_start_of_an_executor_without_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    add_supervisor("a")
    assert asks(monkeypatch, "a", make_session(), has_repository=False)
    assert not RepositorySighting.objects.exists()


def test_start_goes_to_the_host_with_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    add_supervisor("a"), add_supervisor("b")
    session = make_session()
    assert not asks(monkeypatch, "a", session, has_repository=False)
    assert session_status(fresh(session))["start_wait"] is None
    assert asks(monkeypatch, "b", session, has_repository=True)
    known = RepositorySighting.objects.values_list("host__name", "is_present")
    assert dict(known) == {"a": False, "b": True}


def test_start_whose_repository_no_host_has_waits_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    add_supervisor("a"), add_supervisor("b")
    session = make_session()
    assert not asks(monkeypatch, "a", session, has_repository=False)
    assert not asks(monkeypatch, "b", session, has_repository=False)
    status = session_status(fresh(session))
    assert status["start_wait"] == {"reason": "placement", "before": 0, "host": "", "text": MISSING}
    assert (status["stillness"]["reason"], status["stillness"]["text"]) == ("placement", MISSING)
    assert start_claims.has_waiting_starts()
    with session_transaction(session.id) as transaction:
        assert overdue._overdue_reason(transaction) == "placement_wait"
    assert asks(monkeypatch, "a", session, has_repository=True)


def test_executor_of_a_host_is_left_to_its_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    add_supervisor("a")
    host = add_supervisor("b")
    session = make_session()
    Executor.objects.update(host=host)
    assert not asks(monkeypatch, "a", session, has_repository=True)
    assert session_status(fresh(session))["start_wait"] is None
    assert asks(monkeypatch, "b", session, has_repository=True)


def test_executor_of_a_host_without_a_supervisor_waits_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    add_supervisor("a")
    host = add_supervisor("b")
    Supervisor.objects.filter(boot_id="b").delete()
    session = make_session()
    Executor.objects.update(host=host)
    assert not asks(monkeypatch, "a", session, has_repository=True)
    assert session_status(fresh(session))["start_wait"]["text"] == NO_SUPERVISOR


def test_session_that_shares_a_worktree_starts_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    add_supervisor("a"), add_supervisor("b")
    owner = running_session()
    change(execution_of(owner), host_id="b", worktree_path="/srv/worktree")
    session = make_session(task=owner.task, shares_worktree_of=owner)
    assert not asks(monkeypatch, "a", session, has_repository=True)
    assert asks(monkeypatch, "b", session, has_repository=True)
    Supervisor.objects.filter(boot_id="b").delete()
    add_supervisor("c")
    assert not asks(monkeypatch, "a", session, has_repository=True)
    assert session_status(fresh(session))["start_wait"]["text"] == NO_SUPERVISOR_OF_WORKTREE


def test_executor_that_needs_no_disk_here_is_for_any_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    add_supervisor("a"), add_supervisor("b")
    assert asks(monkeypatch, "a", make_session(runtime="remote"), has_repository=False)


def test_claimed_start_shows_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    session = make_session()
    intent = open_start(session)
    start_claims.note_wait(intent.id, MISSING)
    Intent.objects.filter(id=intent.id).update(claimed_generation=1)
    assert session_status(fresh(session))["start_wait"] is None
    start_claims.note_wait(intent.id, "Something else.")
    assert open_start(session).payload["placement_wait"] == MISSING


def test_repository_is_recognised_by_its_files(tmp_path: Path) -> None:
    assert sightings.is_on_disk(str(tmp_path)) is False
    assert sightings.is_on_disk(str(tmp_path / "nowhere")) is False
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n")
    assert sightings.is_on_disk(str(tmp_path)) is True
    assert sightings.is_on_disk("/srv/\0") is None


def test_repository_that_is_opened_is_recorded_with_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    host = add_supervisor("a")
    act_on(monkeypatch, "a")
    repository = make_session().task.repository
    assert repository is not None
    sightings.record_own_sighting(repository.pk)
    sightings.record_own_sighting(repository.pk)
    assert RepositorySighting.objects.get().host == host


@pytest.mark.parametrize("moved", ["executor", "repository"])
def test_session_that_ran_on_a_host_is_resumed_there_wherever_its_executor_or_repository_has_moved(
    monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    add_supervisor("a")
    new_host = add_supervisor("b")
    session = running_session(execution={"host_id": "a", "status": "stopped", "worktree_path": "/srv/worktree"})
    Intent.objects.create(session=session, kind="start")
    if moved == "executor":
        Executor.objects.update(host=new_host)
    assert not asks(monkeypatch, "b", session, has_repository=True), "the worktree is not there"
    assert session_status(fresh(session))["start_wait"] is None
    assert asks(monkeypatch, "a", session, has_repository=moved == "executor")


def test_host_is_known_by_its_name_before_it_has_reported_after_a_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    before_boot = add_supervisor("before boot")
    name, machine = heartbeats.own_host_key()
    Host.objects.filter(id=before_boot.id).update(name=name, machine=machine)
    Supervisor.objects.all().delete()
    session = make_session()
    Executor.objects.update(host=before_boot)
    assert asks(monkeypatch, "after boot", session, has_repository=True)
