"""An agentctl that cannot write its journal puts the session into an error for as long as the trouble lasts."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from sessions_app.models import Lease, LeaseLost, TaskSession
from sessions_app.stream.ingest.writer import show_agentctl_trouble
from sessions_app.supervisor import execution_stream as streams
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import with_registry
from tests.supervisor.rows import MINE, fresh, last_payload, names, running_session
from tests.waiting import eventually_async

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("trouble", ["disk_full", "disk_failing"])
@pytest.mark.parametrize("state", ["RUNNING", "WAITING_FOR_INPUT"])
def test_trouble_is_shown_and_cleared(trouble: str, state: str) -> None:
    session = running_session(state=state)
    for _ in range(2):
        show_agentctl_trouble(session.id, MINE, trouble)
    assert (fresh(session).state, fresh(session).error_code) == (state, trouble)
    assert "disk" in fresh(session).error_message
    for _ in range(2):
        show_agentctl_trouble(session.id, MINE, "")
    assert (fresh(session).state, fresh(session).error_code, fresh(session).error_message) == (state, "", "")
    assert names(session) == ["session.state_changed"] * 2
    assert last_payload(session, "session.state_changed")["reason"] == "room_again"


@pytest.mark.parametrize(
    "fields",
    [{"state": "ERROR", "error_code": "unreachable"}, {"state": "WAITING_FOR_INPUT", "error_code": "token_rejected"}],
)
def test_end_of_trouble_clears_no_other_error(fields: dict[str, Any]) -> None:
    session = running_session(**fields)
    show_agentctl_trouble(session.id, MINE, "")
    assert fresh(session).error_code == fields["error_code"]
    assert names(session) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("trouble", ["disk_full", ""])
def test_notice_is_retried_until_it_is_stored(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"error_code": "" if trouble else "disk_full"}
    session = running_session(execution={"owner": "", "lease_expires_at": None}, **shown)
    tries = []

    def store(*args: Any) -> bool:
        tries.append(args)
        if len(tries) < 3:
            raise OperationalError("database or disk is full")
        return show_agentctl_trouble(*args)

    async def notice_trouble(registry: ExecutionRegistry) -> None:
        stream = await registry.open_stream(session.id)
        assert stream is not None
        stream.stored_trouble = shown["error_code"]
        monkeypatch.setattr(streams, "show_agentctl_trouble", store)
        await stream.handle_notices([{"trouble": trouble}])
        await eventually_async(lambda: stream.stored_trouble == trouble, describe="the error is stored")

    with recording_agentctl(session):
        with_registry(notice_trouble)
    assert (len(tries), fresh(session).error_code) == (3, trouble)


@pytest.mark.django_db(transaction=True)
def test_notice_during_a_start_is_shown_after_it() -> None:
    session = running_session(execution={"owner": "", "lease_expires_at": None}, state="STARTING")

    async def notice_trouble(registry: ExecutionRegistry) -> None:
        stream = await registry.open_stream(session.id)
        assert stream is not None
        await stream.handle_notices([{"trouble": "disk_full"}])
        await registry.database(TaskSession.objects.filter(id=session.id).update, state="RUNNING")
        await eventually_async(lambda: stream.stored_trouble == "disk_full", describe="the error is stored")

    with recording_agentctl(session):
        with_registry(notice_trouble)
    assert (fresh(session).state, fresh(session).error_code) == ("RUNNING", "disk_full")


def test_trouble_is_not_written_without_the_lease() -> None:
    session = running_session()
    with pytest.raises(LeaseLost):
        show_agentctl_trouble(session.id, Lease("somebody else", 1), "disk_full")
    assert fresh(session).error_code == ""
