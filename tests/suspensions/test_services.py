"""A usage limit suspends a session; when it ends, the session goes on once."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from executors_app.plugins import agent_type
from executors_app.wire.protocol import JournalKind
from sessions_app.attention.services.inbox import overdue_prompts
from sessions_app.kernel.services.errors import Conflict, Invalid, TerminalState
from sessions_app.kernel.transactions import create_intent
from sessions_app.models import Attachment, AttentionItem, Prompt, Suspension, TaskSession, session_transaction
from sessions_app.portable.database_restore import make_restored_safe
from sessions_app.prompts.delivery import claim_next_prompt
from sessions_app.prompts.services import queue_prompt
from sessions_app.sessions.services.intents import (
    request_cancel,
    request_close,
    request_resume,
    request_stop,
    waiting_retry,
)
from sessions_app.sessions.services.status import load_status
from sessions_app.supervisor import leases
from sessions_app.suspensions import continuations, services
from sessions_app.suspensions.models import open_suspension, suspensions_that_hold
from sessions_app.turns.interruptions import record_agent_stopped
from sessions_app.turns.rules.transient_errors import Retry
from sessions_app.workflows.driver.prompt_progress import follow_prompt
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import (
    MINE,
    change,
    execution_of,
    fresh,
    last_payload,
    make_user,
    names,
    open_orders,
    prompt_states,
    running_session,
)

pytestmark = pytest.mark.django_db(transaction=True)

LIMIT = "You've hit your session limit · try again in 2 hours"


@pytest.fixture
def refuses_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every agent type count as proven to refuse a prompt before it works on it."""
    kind = replace(agent_type("demo"), refuses_first=True)
    monkeypatch.setattr(continuations, "agent_type", lambda name: kind)


def suspended_session(text: str = LIMIT, *, tool: bool = False, **fields: Any) -> TaskSession:
    """Return a session whose turn, of the prompt p1, a usage limit has just ended."""
    return reach_limit(running_session(**fields), Journal(), "p1", text, tool=tool)


def reach_limit(
    session: TaskSession, journal: Journal, message_id: str, text: str = LIMIT, *, tool: bool = False
) -> TaskSession:
    """Let the turn of a prompt end at a usage limit."""
    Prompt.objects.get_or_create(
        session=session, message_id=message_id, defaults={"text": f"do {message_id}", "state": "sending"}
    )
    begin = journal.turn_begins(message_id)
    used = [journal.tool("t1", status="completed")] if tool else []
    end = journal.line(
        JournalKind.TURN_FAILED, message_id=message_id, code="usage_limit", message=text, ts=timezone.now().timestamp()
    )
    ingest(session, [*begin, *used, end])
    return fresh(session)


def end_limit(session: TaskSession) -> None:
    """Let the time of a suspension come, and run the job that notices it."""
    Suspension.objects.filter(session=session, ended_at=None).update(wakes_at=timezone.now() - timedelta(seconds=1))
    assert services.end_due_suspensions() == 1


def queue(session: TaskSession, text: str) -> None:
    """Let a user send the prompt p2."""
    queue_prompt(session.id, "p2", text, make_user())


def claimed(session: TaskSession) -> str | None:
    """Return the message id of the prompt that would be sent to the agent now."""
    execution = execution_of(session)
    found = claim_next_prompt(session.id, MINE, execution.journal_epoch, frozenset())
    return found.message_id if found else None


def test_limit_suspends_the_session_until_the_time_that_the_agent_names() -> None:
    leases.register_supervisor(MINE.owner)
    leases.mark_first_sweep_done(MINE.owner)
    session = suspended_session()
    row = Suspension.objects.get()
    assert row.resets_at is not None
    assert abs(row.resets_at - timezone.now() - timedelta(hours=2)) < timedelta(minutes=1)
    assert row.resets_at < (row.wakes_at or row.resets_at) <= row.resets_at + timedelta(minutes=1)
    status = load_status(session)
    assert status.suspension is not None
    assert status.suspension["message"] == LIMIT
    assert status.stillness is not None
    assert status.stillness["reason"] == "suspended"
    assert status.stillness["until"] == row.wakes_at.isoformat() if row.wakes_at else None
    assert [item.kind for item in AttentionItem.objects.filter(resolved_at=None)] == ["suspended"]


def test_limit_without_a_known_end_suspends_without_holding_prompts() -> None:
    session = suspended_session("You have reached the maximum number of requests for today.")
    row = Suspension.objects.get()
    assert (row.resets_at, row.wakes_at) == (None, None)
    queue(session, "try")
    assert claimed(session) == "p2"


def test_prompts_wait_for_the_end_of_the_limit_and_are_then_sent_by_themselves() -> None:
    session = suspended_session()
    queue(session, "next")
    assert claimed(session) is None
    end_limit(session)
    assert last_payload(session, "session.suspension.ended")["continuation"] == "nothing"
    assert claimed(session) == "p2"
    assert not AttentionItem.objects.filter(kind="suspended", resolved_at=None).exists()


def test_prompt_that_a_limit_holds_back_is_never_overdue() -> None:
    session = suspended_session()
    queue(session, "next")
    long_ago = timezone.now() - timedelta(days=1)
    Prompt.objects.filter(message_id="p2").update(created_at=long_ago)
    session.runs.update(ended_at=long_ago)
    assert not overdue_prompts().exists()
    end_limit(session)
    assert not overdue_prompts().exists()
    Suspension.objects.update(ended_at=long_ago)
    assert overdue_prompts().exists()


@pytest.mark.parametrize(("windows", "expected"), [(0, None), (1, "limit")])
def test_turn_that_the_limit_has_cut_off_is_continued_as_the_policy_says(
    settings: Any, windows: int, expected: str | None
) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = windows
    session = suspended_session(tool=True)
    end_limit(session)
    found = claimed(session)
    assert (found or "").partition(":")[0] == (expected or "")
    if expected:
        again = Prompt.objects.get(message_id=found)
        assert again.kind == "retry"
        assert "do p1" in again.text
        assert again.text != "do p1"
        assert Prompt.objects.get(message_id="p1").resent_as == again


def test_turn_without_any_work_gets_its_own_prompt_again_if_its_type_refuses_first(refuses_first: None) -> None:
    session = suspended_session()
    end_limit(session)
    assert Prompt.objects.get(message_id=claimed(session)).text == "do p1"


def test_turn_without_any_work_is_told_to_look_first_if_its_type_may_have_begun(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session()
    digest = sha256(b"hello").hexdigest()
    Attachment.objects.create(session=session, sha256=digest, media_type="text/plain", content=b"hello")
    files = [{"name": "a.txt", "sha256": digest, "media_type": "text/plain", "size": 5}]
    Prompt.objects.filter(message_id="p1").update(attachments=files)
    end_limit(session)
    again = Prompt.objects.get(message_id=claimed(session))
    assert again.text != "do p1"
    assert "do p1" in again.text
    assert again.attachments == files


def test_person_sends_the_refused_prompt_again_after_the_limit() -> None:
    leases.register_supervisor(MINE.owner)
    leases.mark_first_sweep_done(MINE.owner)
    session = suspended_session()
    end_limit(session)
    cut_off = load_status(fresh(session)).cut_off_turn
    assert cut_off is not None
    assert (cut_off["message_id"], cut_off["has_worked"]) == ("p1", False)
    item = AttentionItem.objects.get(resolved_at=None)
    assert item.kind == "idle"
    assert "send the prompt again" in item.next_step
    found = services.go_on_now(session.id, make_user())
    assert found.prompt is not None
    assert (found.prompt.text, found.prompt.by) == ("do p1", make_user())
    assert claimed(session) == found.prompt.message_id
    assert load_status(fresh(session)).cut_off_turn is None
    with pytest.raises(Conflict):
        services.go_on_now(session.id, make_user())


def test_turn_that_something_has_followed_is_not_offered_again() -> None:
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1")
    end_limit(session)
    Prompt.objects.create(session=session, message_id="p2", text="else", state="sending")
    ingest(session, [*journal.turn_begins("p2"), *journal.says("done"), journal.completes("p2")])
    assert load_status(fresh(session)).cut_off_turn is None
    with pytest.raises(Conflict):
        services.go_on_now(session.id, make_user())


def test_cancel_during_a_limit_withdraws_the_continuation(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(tool=True)
    queue(session, "next")
    assert request_cancel(session.id, make_user()) is True
    assert last_payload(session, "session.suspension.withdrawn")["by"] == "ada"
    assert request_cancel(session.id, make_user()) is False
    assert claimed(session) is None, "the limit still holds back what is queued"
    end_limit(session)
    assert last_payload(session, "session.suspension.ended")["continuation"] == "withdrawn"
    assert prompt_states(session) == {"p1": "done", "p2": "queued"}
    assert claimed(session) == "p2"


def test_cancelled_continuation_asks_nobody_for_a_review(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(tool=True)
    request_cancel(session.id, make_user())
    end_limit(session)
    assert not AttentionItem.objects.filter(resolved_at=None).exists()
    assert load_status(fresh(session)).cut_off_turn is None


def test_stop_during_a_limit_withdraws_the_continuation(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(tool=True)
    request_stop(session.id, make_user())
    session.intents.update(done_at=timezone.now())
    request_resume(session.id, make_user())
    end_limit(session)
    assert prompt_states(session) == {"p1": "done"}


def test_person_lets_a_cancelled_turn_go_on_before_the_limit_ends() -> None:
    session = suspended_session(tool=True)
    request_cancel(session.id, make_user())
    assert services.go_on_now(session.id, make_user()).prompt is not None


def test_step_of_a_workflow_fails_when_its_continuation_is_cancelled(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(tool=True)
    request_cancel(session.id, make_user())
    result = follow_prompt(session, "p1").result
    assert result is not None
    assert "session limit" in result["error"]


@pytest.mark.parametrize(("windows", "expected"), [(0, "nothing"), (1, "continue")])
def test_status_says_what_happens_at_the_end_of_the_limit(settings: Any, windows: int, expected: str) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = windows
    status = load_status(suspended_session(tool=True))
    assert status.suspension is not None
    assert status.suspension["continuation"] == expected


def test_each_further_limit_counts_and_the_policy_ends_the_series(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 2
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", tool=True)
    for _ in range(2):
        end_limit(session)
        message_id = claimed(session)
        assert message_id is not None
        reach_limit(session, journal, message_id, tool=True)
    assert list(Suspension.objects.order_by("began_at").values_list("windows", flat=True)) == [0, 1, 2]
    end_limit(session)
    assert claimed(session) is None


def test_going_on_happens_once_however_often_it_is_requested(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(tool=True)
    Suspension.objects.update(wakes_at=timezone.now() - timedelta(seconds=1))
    together = threading.Barrier(2)
    counts: list[int] = []

    def go_on() -> None:
        together.wait()
        counts.append(services.end_due_suspensions())
        connection.close()

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 1
    assert Prompt.objects.filter(message_id__startswith="limit:").count() == 1
    assert services.end_due_suspensions() == 0
    with pytest.raises(Conflict):
        services.go_on_now(session.id, make_user())


def test_person_lets_it_go_on_before_the_limit_ends() -> None:
    session = suspended_session(tool=True)
    found = services.go_on_now(session.id, make_user())
    assert found.prompt is not None
    assert "has ended" not in found.prompt.text  # nobody knows that
    assert claimed(session) == found.prompt.message_id
    ended = Suspension.objects.get()
    assert (ended.end, ended.ended_by) == ("user", make_user())
    assert last_payload(session, "session.suspension.ended")["by"] == "ada"


def test_another_prompt_after_an_unknown_end_replaces_the_turn_that_was_cut_off(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", "Usage limit reached.", tool=True)
    Prompt.objects.create(session=session, message_id="p2", text="else", state="sending")
    ingest(session, [*journal.turn_begins("p2"), *journal.says("done"), journal.completes("p2")])
    assert open_suspension(session.id) is None
    assert Suspension.objects.get().end == "obsolete"
    assert services.end_due_suspensions() == 0


def test_stopped_session_does_not_go_on(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(tool=True)
    change(session, desired_state="stopped")
    end_limit(session)
    assert Suspension.objects.get().end == "obsolete"
    assert prompt_states(session) == {"p1": "done"}


def test_session_of_somebody_who_may_no_longer_write_does_not_go_on(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(tool=True)
    make_user().groups.clear()
    end_limit(session)
    assert prompt_states(session) == {"p1": "done"}
    assert open_orders(session) == []


def test_prompt_to_a_session_that_sleeps_until_the_end_of_its_limit_starts_no_agent() -> None:
    session = suspended_session()
    change(execution_of(session), status="stopped", status_reason="idle")
    change(session, launch_id="")
    queue(session, "next")
    assert open_orders(session) == []
    end_limit(session)
    assert [kind for kind, _ in open_orders(session)] == ["start"]


def test_step_of_a_workflow_waits_and_follows_the_prompt_that_goes_on(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(tool=True)
    assert follow_prompt(session, "p1").result is None
    end_limit(session)
    followed = follow_prompt(session, "p1")
    assert followed.result is None
    assert followed.prompt is not None
    assert followed.prompt.message_id.startswith("limit:")


def test_step_of_a_workflow_fails_when_nobody_continues_it() -> None:
    session = suspended_session(tool=True)
    end_limit(session)
    result = follow_prompt(session, "p1").result
    assert result is not None
    assert "session limit" in result["error"]


def test_events_tell_the_beginning_and_the_end() -> None:
    session = suspended_session()
    begun = last_payload(session, "session.suspended")
    assert (begun["reason"], begun["zone"], begun["message"]) == ("usage_limit", "UTC", LIMIT)
    end_limit(session)
    assert names(session)[-1] == "session.suspension.ended"


def test_limit_that_an_agent_reports_as_an_error_suspends_too() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    begin, now = journal.turn_begins("p1"), timezone.now().timestamp()
    error = {"code": "agent_error", "message": "You've hit your usage limit. Try again in 3 hours 42 minutes."}
    ingest(session, [*begin, journal.line(JournalKind.TURN_FAILED, message_id="p1", ts=now, **error)])
    assert session.runs.get().reason == "usage_limit"
    assert open_suspension(session.id) is not None


def test_error_that_passes_within_a_minute_is_retried_and_suspends_nothing() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    begin = journal.turn_begins("p1")
    error = {"code": "agent_error", "message": "You have hit the rate limit. Please try again in 20s"}
    ingest(session, [*begin, journal.line(JournalKind.TURN_FAILED, message_id="p1", **error)])
    assert open_suspension(session.id) is None
    assert session.prompts.filter(kind="retry").exists()


def test_session_that_an_earlier_release_has_deleted_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    suspended_session()
    Suspension.objects.update(session_id=uuid.uuid4(), wakes_at=timezone.now() - timedelta(seconds=1))
    assert services.end_due_suspensions() == 0
    assert services.next_wake() is None
    assert not caplog.records


def test_session_that_was_given_up_meanwhile_is_started_by_a_person_only(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(tool=True)
    change(execution_of(session), status="stopped")
    change(session, state="FAILED")
    end_limit(session)
    assert open_orders(session) == []
    assert prompt_states(session) == {"p1": "done"}


def test_person_cannot_let_a_session_go_on_that_has_ended() -> None:
    session = change(suspended_session(), state="COMPLETED")
    with pytest.raises(TerminalState):
        services.go_on_now(session.id, make_user())


def test_turn_that_a_person_has_cancelled_is_not_continued(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = running_session()
    Prompt.objects.create(session=session, message_id="p1", text="do p1", state="sending")
    create_intent(session, "cancel", make_user(), {"message_id": "p1"})
    reach_limit(session, Journal(), "p1", tool=True)
    end_limit(session)
    assert prompt_states(session) == {"p1": "done"}


def test_limit_after_a_retry_belongs_to_the_same_series(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", tool=True)
    end_limit(session)
    continued = claimed(session)
    assert continued is not None
    error = {"code": "agent_error", "message": "You have hit the rate limit. Please try again in 20s"}
    begin = journal.turn_begins(continued)
    ingest(session, [*begin, journal.line(JournalKind.TURN_FAILED, message_id=continued, **error)])
    session.prompts.filter(state="queued").update(not_before=None)
    retried = claimed(session)
    assert retried is not None
    assert retried.startswith("retry:")
    reach_limit(session, journal, retried, tool=True)
    end_limit(session)
    assert Suspension.objects.latest("began_at").windows == 1
    assert claimed(session) is None


def test_prompt_that_goes_on_quotes_the_request_itself_after_every_limit(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 2
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", tool=True)
    texts = []
    for _ in range(2):
        end_limit(session)
        message_id = claimed(session)
        texts.append(Prompt.objects.get(message_id=message_id).text)
        reach_limit(session, journal, str(message_id), tool=True)
    assert texts[0] == texts[1]


def test_turn_that_nothing_continues_asks_for_a_review_when_the_limit_ends() -> None:
    session = suspended_session(tool=True)
    end_limit(session)
    assert [item.kind for item in AttentionItem.objects.filter(resolved_at=None)] == ["idle"]


def test_attempt_that_fails_for_another_reason_asks_for_a_review() -> None:
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", "Usage limit reached.")
    Prompt.objects.create(session=session, message_id="p2", text="else", state="sending")
    begin, error = journal.turn_begins("p2"), {"code": "agent_error", "message": "invalid request"}
    ingest(session, [*begin, journal.line(JournalKind.TURN_FAILED, message_id="p2", **error)])
    assert [item.kind for item in AttentionItem.objects.filter(resolved_at=None)] == ["idle"]


def test_attempt_that_runs_is_shown_as_work() -> None:
    leases.register_supervisor(MINE.owner)
    leases.mark_first_sweep_done(MINE.owner)
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", "Usage limit reached.")
    Prompt.objects.create(session=session, message_id="p2", text="else", state="sending")
    ingest(session, journal.turn_begins("p2"))
    assert load_status(fresh(session)).stillness is None


def test_user_cannot_take_the_name_of_the_prompt_that_goes_on() -> None:
    session = suspended_session()
    with pytest.raises(Invalid):
        queue_prompt(session.id, f"limit:{Suspension.objects.get().id}", "mine", make_user())


def test_queue_is_sent_although_the_files_of_the_turn_are_gone(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session()
    lost = {"name": "a.txt", "sha256": "0" * 64, "media_type": "text/plain", "size": 1}
    Prompt.objects.filter(message_id="p1").update(attachments=[lost])
    change(execution_of(session), status="stopped", status_reason="idle")
    change(session, launch_id="")
    queue(session, "next")
    end_limit(session)
    assert [kind for kind, _ in open_orders(session)] == ["start"]


def test_closing_the_session_ends_its_suspension() -> None:
    session = suspended_session("Usage limit reached.")
    request_close(session.id, make_user(), "cancelled")
    assert open_suspension(session.id) is None


def test_restored_database_lets_no_session_go_on(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(tool=True)
    make_restored_safe()
    request_resume(session.id, make_user())
    assert open_suspension(session.id) is None
    assert services.end_due_suspensions() == 0


def test_time_that_a_wrong_clock_has_written_holds_nothing() -> None:
    session = suspended_session()
    queue(session, "next")
    Suspension.objects.update(wakes_at=timezone.now() + timedelta(days=365))
    assert claimed(session) == "p2"
    assert not suspensions_that_hold().exists()
    assert services.end_due_suspensions() == 1


def test_page_says_the_day_on_which_the_session_goes_on() -> None:
    leases.register_supervisor(MINE.owner)
    leases.mark_first_sweep_done(MINE.owner)
    session = suspended_session("You have hit your weekly limit. Try again in 5 days.")
    day = Suspension.objects.get().wakes_at
    assert day is not None and day > timezone.now() + timedelta(days=4)
    stillness = load_status(session).stillness
    assert stillness is not None
    assert f"{day:%Y-%m-%d}" in stillness["text"]


def test_prompt_that_goes_on_is_shown_without_a_count_of_retries() -> None:
    session = suspended_session(tool=True)
    services.go_on_now(session.id, make_user())
    row = waiting_retry(session)
    assert row is not None
    sentence = Retry(row.trouble, row.trouble_message, row.attempt, 5, row.not_before).sentence
    assert sentence == "The turn that a usage limit has ended is continued."


def test_deleted_session_takes_its_suspensions_along() -> None:
    session = suspended_session()
    change(session, state="COMPLETED")
    session.task.delete()
    assert not Suspension.objects.exists()
    assert services.end_due_suspensions() == 0


def test_stop_and_resume_keep_the_limit() -> None:
    session = suspended_session()
    request_stop(session.id, make_user())
    session.intents.update(done_at=timezone.now())
    request_resume(session.id, make_user())
    queue(session, "next")
    assert claimed(session) is None


def test_result_of_an_external_wait_is_held_back_too() -> None:
    session = suspended_session()
    session.runs.create(message_id="wait:w", state="waiting", has_process=False, started_at=timezone.now())
    session.prompts.create(message_id="wait:w", kind="wait", text="built")
    assert claimed(session) is None
    end_limit(session)
    assert claimed(session) == "wait:w"


OWN_WAIT = f"{LIMIT}\nClaude Code will continue automatically at 3pm (UTC). Keep this session open."


def test_agent_that_waits_by_itself_is_not_continued_too(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(OWN_WAIT, tool=True)
    status = load_status(session)
    assert status.suspension is not None
    assert status.suspension["continuation"] == "agent"
    end_limit(session)
    assert last_payload(session, "session.suspension.ended")["continuation"] == "agent"
    assert prompt_states(session) == {"p1": "done"}
    assert services.go_on_now(session.id, make_user()).prompt is not None, "a person may still do it"


def test_agent_that_is_gone_goes_on_with_nothing_by_itself(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session = suspended_session(OWN_WAIT, tool=True)
    with session_transaction(session.id) as transaction:
        record_agent_stopped(transaction)
    status = load_status(fresh(session))
    assert status.suspension is not None
    assert status.suspension["continuation"] == "continue", "nobody waits any more, so the policy decides"
    end_limit(session)
    assert last_payload(session, "session.suspension.ended")["continuation"] == "continue"


def test_turn_that_has_waited_for_its_limit_and_gone_on_is_completed() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    text = f"{OWN_WAIT}\nThe tests pass now."
    lines = [*journal.turn_begins("p1"), *journal.says(text)]
    ingest(session, [*lines, {**journal.completes("p1"), "output": True, "only_text": text}])
    assert session.runs.get().state == "completed"
    assert open_suspension(session.id) is None


def test_suspension_ends_when_an_agent_that_waits_by_itself_works_again() -> None:
    session, journal = running_session(), Journal()
    reach_limit(session, journal, "p1", OWN_WAIT)
    assert open_suspension(session.id) is not None
    later = timezone.now().timestamp() + 60
    work = journal.line(JournalKind.MESSAGE_AGENT, text="The limit has ended. I go on.", ts=later)
    end = journal.line(JournalKind.AGENT_TURN_ENDED, ts=later + 1)
    ingest(session, [work, end])
    assert session.runs.filter(origin="agent").exists()
    assert open_suspension(session.id) is None
