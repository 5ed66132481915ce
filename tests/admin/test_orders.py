"""Admin actions on sessions: intents are stored and refusals are reported."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.models import Intent, SweepRequest, TaskSession
from tests.admin.everything import browser, make_set, staff

LIST = "/admin/sessions_app/tasksession/"


@pytest.fixture
def staff_browser(db: None) -> Client:
    """Return the browser session of a staff user who is in no team."""
    return browser(staff())


def stopped_session(name: str) -> TaskSession:
    """Return a stopped session that was never prompted, so that it can be started."""
    session = make_set(name)
    session.intents.update(done_at=timezone.now())
    session.runs.all().delete()
    ExecutorRunning.objects.filter(session=session).update(status="stopped")
    TaskSession.objects.filter(id=session.id).update(state="WAITING_FOR_INPUT")
    return session


def ended_session(name: str) -> TaskSession:
    session = make_set(name)
    session.intents.update(done_at=timezone.now())
    TaskSession.objects.filter(id=session.id).update(state="COMPLETED", desired_state="stopped")
    return session


def run_action(staff_browser: Client, action: str, *sessions: TaskSession) -> list[str]:
    """Select sessions and run an action; return the messages on the page."""
    form = {"action": action, "_selected_action": [str(session.id) for session in sessions]}
    answer = staff_browser.post(LIST, form)
    assert answer.status_code == 302
    return [str(message) for message in get_messages(answer.wsgi_request)]


def open_orders(session: TaskSession) -> list[str]:
    return list(Intent.objects.filter(session=session, done_at=None).values_list("kind", flat=True))


def test_resume_requests_each_session_and_reports_refusals(staff_browser: Client) -> None:
    first, second, over = stopped_session("a"), stopped_session("b"), ended_session("c")
    messages = run_action(staff_browser, "resume", first, second, over)
    assert messages[0] == "2 sessions asked to resume, 1 refused."
    assert "The session has ended and cannot be restarted." in messages[1]
    assert f"{over} (Task c)" in messages[1]
    assert [open_orders(one) for one in (first, second, over)] == [["start"], ["start"], []]


def test_requesting_user_is_recorded(staff_browser: Client) -> None:
    session = stopped_session("a")
    run_action(staff_browser, "resume", session)
    assert [order.by.username for order in session.intents.filter(done_at=None) if order.by] == ["staff"]
    assert [entry.user.username for entry in LogEntry.objects.filter(object_id=session.id)] == ["staff"]


def test_resume_of_a_running_session_is_refused(staff_browser: Client) -> None:
    session = stopped_session("a")
    ExecutorRunning.objects.filter(session=session).update(status="ready")
    TaskSession.objects.filter(id=session.id).update(launch_id="launch")
    messages = run_action(staff_browser, "resume", session)
    assert messages[0] == "0 sessions asked to resume, 1 refused."
    assert "The session is already running." in messages[1]
    assert open_orders(session) == []


def test_stop_requests_the_end_of_the_execution(staff_browser: Client) -> None:
    session, over = stopped_session("a"), ended_session("b")
    messages = run_action(staff_browser, "stop", session, over)
    assert messages[0] == "1 session asked to stop, 1 refused."
    assert (open_orders(session), open_orders(over)) == (["stop"], [])
    session.refresh_from_db()
    assert (session.desired_state, session.state) == ("stopped", "WAITING_FOR_INPUT")


def test_only_the_first_refusals_are_listed(staff_browser: Client) -> None:
    over = [ended_session(str(number)) for number in range(12)]
    messages = run_action(staff_browser, "stop", *over)
    assert messages[0] == "0 sessions asked to stop, 12 refused."
    assert messages[-1] == "… and 2 more."
    assert len(messages) == 12


def test_sweep_now_requests_a_sweep_of_the_selected_sessions(staff_browser: Client) -> None:
    first, second = stopped_session("a"), stopped_session("b")
    SweepRequest.objects.all().delete()
    [messages] = run_action(staff_browser, "sweep_now", first, second)
    request = SweepRequest.objects.get()
    assert set(request.sessions) == {str(first.id), str(second.id)}
    assert (request.by.username if request.by else "", request.done_at, request.dry_run) == ("staff", None, False)
    assert str(request.id) in messages


def test_adding_a_request_sweeps_all_sessions(staff_browser: Client) -> None:
    answer = staff_browser.post(reverse("admin:sessions_app_sweeprequest_add"), {"dry_run": "on"})
    assert answer.status_code == 302
    request = SweepRequest.objects.get()
    assert (request.sessions, request.dry_run, request.by.username if request.by else "") == ([], True, "staff")


@pytest.mark.parametrize("action", ["delete_selected", "state", "nothing"])
def test_no_other_action_is_available(staff_browser: Client, action: str) -> None:
    session = stopped_session("a")
    staff_browser.post(LIST, {"action": action, "_selected_action": [str(session.id)], "post": "yes"})
    assert TaskSession.objects.filter(id=session.id, state="WAITING_FOR_INPUT").exists()
    assert open_orders(session) == []
