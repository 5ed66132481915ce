"""A cordoned host takes no new sessions, and one that drains stops each session once it is at rest."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from executors_app.machine.process import identity
from sessions_app.accounts.audit import recent_changes
from sessions_app.hosts import cordons, draining, heartbeats, own_executions
from sessions_app.hosts.models import Host, HostMaintenance, Role
from sessions_app.hosts.remaining import remaining_on
from sessions_app.hosts.rules.maintenance import Orders, RunFacts, takes_start, why_running
from sessions_app.hosts.services import service_state
from sessions_app.kernel.services.errors import NotFound
from sessions_app.models import Intent, Prompt, Supervisor, TaskSession
from sessions_app.prompts.delivery import claim_next_prompt
from sessions_app.sessions.services.intents import request_stop
from sessions_app.sessions.services.status import session_status
from sessions_app.starts.outcomes import write_stopped
from tests.supervisor.rows import (
    MINE,
    NO_LEASE,
    change,
    execution_of,
    fresh,
    last_payload,
    make_session,
    make_user,
    names,
    open_orders,
    prompt_states,
    running_session,
)
from tests.supervisor.start_claims import try_claim

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def host(db: None, settings: Any) -> Host:
    """Return the host of this process, which has reported."""
    settings.KANDEV_HOST_NAME = "build-1"
    heartbeats.Heartbeat(Role.SUPERVISOR).beat()
    return Host.objects.get()


class Stream:
    """What the supervisor holds of a session that it is attached to."""

    def __init__(self, session: TaskSession):
        self.session_id, self.lease = session.id, MINE


def session_here(**fields: Any) -> TaskSession:
    return running_session(execution={"host_id": identity.host_id()}, **fields)


def new_session() -> TaskSession:
    session = make_session("write the parser")
    change(execution_of(session), **NO_LEASE)
    return session


@pytest.mark.parametrize(
    ("orders", "is_new", "takes"),
    [
        (Orders(), True, True),
        (Orders(cordoned=True), True, False),
        (Orders(cordoned=True), False, True),
        (Orders(cordoned=True, draining=True), True, False),
        (Orders(cordoned=True, draining=True), False, False),
        (Orders(lost=True), True, False),
        (Orders(lost=True), False, False),
    ],
)
def test_which_starts_a_host_takes(orders: Orders, is_new: bool, takes: bool) -> None:
    assert takes_start(orders, is_new=is_new) is takes


@pytest.mark.parametrize(
    ("facts", "begins"),
    [
        (RunFacts(is_unreachable=True, has_turn=True), "Its agentctl does not answer"),
        (RunFacts(is_stopping=True, has_turn=True), "It is being stopped"),
        (RunFacts(is_starting=True), "It is starting"),
        (RunFacts(has_request=True, has_turn=True), "Its agent waits for an answer"),
        (RunFacts(has_turn=True, has_background=True), "A turn is running"),
        (RunFacts(has_background=True), "Processes that its agent has started"),
        (RunFacts(), "It comes to rest"),
    ],
)
def test_why_a_session_still_runs(facts: RunFacts, begins: str) -> None:
    assert why_running(facts).startswith(begins)


def test_cordoned_host_takes_no_new_session_until_it_is_back_in_service() -> None:
    session, now = new_session(), timezone.now()
    Supervisor.objects.create(boot_id="b", host_id="h", started_at=now, beat_at=now, swept_at=now)
    cordons.cordon("build-1", make_user())

    assert try_claim(session) is None

    assert execution_of(session).owner == "", "another host may take it"
    status = session_status(fresh(session))
    assert status["start_wait"] == {"reason": "host", "before": 0, "host": "build-1", "text": ""}
    assert status["stillness"]["text"] == "build-1 takes no new sessions."

    cordons.uncordon("build-1", make_user())
    assert try_claim(session) is not None
    assert session_status(fresh(session))["start_wait"] is None


def test_cordoned_host_resumes_what_runs_there() -> None:
    session = session_here(launch_id="")
    cordons.cordon("build-1", None)
    assert try_claim(session) is not None


def test_another_host_takes_what_a_cordoned_one_refuses(settings: Any) -> None:
    session = new_session()
    cordons.cordon("build-1", None)
    assert try_claim(session) is None
    settings.KANDEV_HOST_NAME = "build-2"
    assert try_claim(session) is not None


def test_decisions_are_in_the_history_once(host: Host) -> None:
    by = make_user()
    cordons.drain("build-1", by)
    cordons.drain("build-1", by)
    cordons.cordon("build-1", by)
    cordons.uncordon("build-1", by)
    assert [line.change_message for line in recent_changes(host)] == [
        "is in service again (uncordoned)",
        "is drained",
    ]
    assert not HostMaintenance.objects.exists()


def by_hand(decision: str) -> None:
    {"cordon": cordons.cordon, "drain": cordons.drain, "uncordon": cordons.uncordon}[decision]("build-1", make_user())


@pytest.mark.parametrize(
    ("before", "meanwhile", "state"),
    [
        ([], [], ""),
        (["cordon"], [], "cordoned"),
        (["drain"], [], "draining"),
        ([], ["cordon"], "cordoned"),
        ([], ["drain"], "draining"),
        (["cordon"], ["drain"], "draining"),
        (["cordon"], ["uncordon"], ""),
        ([], ["uncordon", "cordon"], "cordoned"),
    ],
)
def test_machine_that_is_back_ends_only_the_drain_for_its_shutdown(
    before: list[str], meanwhile: list[str], state: str
) -> None:
    for decision in before:
        by_hand(decision)
    cordons.drain_for_shutdown("build-1")
    cordons.drain_for_shutdown("build-1")
    assert cordons.is_draining_here()
    for decision in meanwhile:
        by_hand(decision)
    cordons.return_after_shutdown("build-1")
    cordons.return_after_shutdown("build-1")
    assert service_state(cordons.maintenance_here()) == state
    assert cordons.is_in_service("build-1") == (state == "")


def test_unknown_host_is_named() -> None:
    with pytest.raises(NotFound, match="No host is called “nowhere”"):
        cordons.cordon("nowhere", None)


def test_draining_stops_a_session_at_rest_and_remembers_that_it_should_run() -> None:
    session = session_here()
    cordons.drain("build-1", None)

    assert draining.write_drained(Stream(session))  # type: ignore[arg-type]

    assert open_orders(session) == [("stop", {"reason": "drained"})]
    assert last_payload(session, "session.drained")["host"] == "build-1"
    write_stopped(session.id, None, "drained")
    Intent.objects.update(done_at=timezone.now())
    row, execution = fresh(session), execution_of(session)
    assert (row.desired_state, row.state) == ("running", "WAITING_FOR_INPUT")
    assert (execution.status, execution.status_reason) == ("stopped", "drained")
    assert session_status(row)["start_wait"] == {"reason": "host", "before": 0, "host": "build-1", "text": ""}


@pytest.mark.parametrize("busy", ["turn", "prompt", "permission", "intent", "in service"])
def test_draining_leaves_a_session_that_is_busy(busy: str) -> None:
    session = session_here()
    if busy != "in service":
        cordons.drain("build-1", None)
    if busy == "turn":
        session.runs.create(message_id="p1", state="running", has_process=True, started_at=timezone.now())
    elif busy == "prompt":
        Prompt.objects.create(session=session, message_id="p1", text="go", state="sending")
    elif busy == "permission":
        session.permissions.create(id="1", state="pending", requested_at=timezone.now())
    elif busy == "intent":
        request_stop(session.id, None)
    before = names(session)

    assert not draining.write_drained(Stream(session))  # type: ignore[arg-type]

    assert names(session) == before


def test_sessions_that_do_not_come_to_rest_keep_no_other_from_being_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = sorted((session_here() for _ in range(5)), key=lambda session: session.id)
    looked_at: list[Any] = []

    class Registry:
        boot_id = MINE.owner

        async def database(self, function: Any, *arguments: Any) -> Any:
            return function(*arguments)

    async def look(registry: Any, session_id: Any) -> bool:
        looked_at.append(session_id)
        return False

    monkeypatch.setattr(draining, "BATCH", 2)
    monkeypatch.setattr(draining, "_stop_if_at_rest", look)
    # Run by hand: a loop of its own would use another connection than the test.
    with pytest.raises(StopIteration) as ended:
        draining.stop_sessions_at_rest(Registry()).send(None)  # type: ignore[arg-type]
    assert ended.value.value is True, "some that run here are left"
    assert looked_at == [session.id for session in sessions]


def test_queued_prompt_begins_no_turn_on_a_host_that_drains() -> None:
    session = session_here()
    Prompt.objects.create(session=session, message_id="p1", text="go", state="queued")
    cordons.drain("build-1", None)
    assert claim_next_prompt(session.id, MINE, "e1", frozenset()) is None
    assert prompt_states(session) == {"p1": "queued"}
    assert draining.write_drained(Stream(session))  # type: ignore[arg-type]
    cordons.uncordon("build-1", None)
    assert prompt_states(session) == {"p1": "queued"}


def test_sessions_of_this_host_alone_are_released_once() -> None:
    drained = {"status": "stopped", "status_reason": "drained", **NO_LEASE}
    here = running_session(execution={"host_id": identity.host_id(), **drained})
    elsewhere = running_session(execution={"host_id": "another", **drained})

    assert draining.release_drained_sessions() == [here.id]
    assert draining.release_drained_sessions() == []

    assert execution_of(here).status_reason == draining.RELEASED_REASON
    assert execution_of(elsewhere).status_reason == "drained"


def test_sessions_are_released_also_after_the_host_was_renamed(settings: Any) -> None:
    session = running_session(
        execution={"host_id": identity.host_id(), "status": "stopped", "status_reason": "drained", **NO_LEASE}
    )
    cordons.drain("build-1", None)
    settings.KANDEV_HOST_NAME = "build-1-renamed"
    assert not cordons.is_draining_here()
    assert draining.release_drained_sessions() == [session.id]


def test_session_that_is_still_being_stopped_is_released_after_its_end() -> None:
    session = session_here()
    cordons.drain("build-1", None)
    draining.write_drained(Stream(session))  # type: ignore[arg-type]
    cordons.uncordon("build-1", None)

    assert draining.release_drained_sessions() == []
    assert draining.has_drained_sessions()

    write_stopped(session.id, None, "drained")
    Intent.objects.update(done_at=timezone.now())
    assert draining.release_drained_sessions() == [session.id]
    assert not draining.has_drained_sessions()


def test_many_drained_sessions_of_another_host_hide_none_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_executions, "PAGE", 2)
    drained = {"status": "stopped", "status_reason": "drained", **NO_LEASE}
    here = [running_session(execution={"host_id": identity.host_id(), **drained}).id for _ in range(3)]
    for _ in range(3):
        running_session(execution={"host_id": "another", **drained})
    assert sorted(draining.release_drained_sessions()) == sorted(here)


def test_what_still_runs_is_named_with_its_reason(host: Host) -> None:
    working, resting, asleep = session_here(), session_here(), session_here()
    working.runs.create(message_id="p1", state="running", has_process=True, started_at=timezone.now())
    change(execution_of(asleep), status="stopped", status_reason="idle")
    running_session(execution={"host_id": "another"})

    remaining = remaining_on([host])

    assert remaining.count == 2
    assert not remaining.is_attended
    assert {one.session_id: one.reason for one in remaining.sessions} == {
        working.id: "A turn is running.",
        resting.id: "It comes to rest, unless a terminal is open there or a script is running.",
    }


def test_stop_that_is_not_carried_out_yet_counts_as_running(host: Host) -> None:
    session = session_here()
    cordons.drain("build-1", None)
    draining.write_drained(Stream(session))  # type: ignore[arg-type]
    assert [one.reason for one in remaining_on([host]).sessions] == ["It is being stopped."]
    write_stopped(session.id, None, "drained")
    Intent.objects.update(done_at=timezone.now())
    assert remaining_on([host]).count == 0


def test_standing_orders_are_read_with_one_query(django_assert_num_queries: Any) -> None:
    another = Host.objects.create(name="build-2", first_seen_at=timezone.now())
    HostMaintenance.objects.create(host=another, lost_at=timezone.now())
    cordons.drain("build-1", None)
    with django_assert_num_queries(1):
        found = cordons.load_standing_orders()
    assert found == cordons.StandingOrders(Orders(cordoned=True, draining=True), is_another_lost=True)
