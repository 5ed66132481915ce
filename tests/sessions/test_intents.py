"""A request to a session is stored once, or refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from sessions_app.kernel.services.errors import (
    AlreadyRunning,
    Conflict,
    Invalid,
    MissingResumeToken,
    NotResumable,
    PromptInDoubt,
    SessionsError,
    TerminalState,
    WorktreeMissing,
)
from sessions_app.models import Prompt, TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services import intents
from tests.supervisor import database_dump
from tests.supervisor.rows import change, fresh, make_user, names, open_orders, prompt_states, running_session

pytestmark = pytest.mark.django_db


def at_rest(**fields: Any) -> TaskSession:
    """Return a session whose agent has exited and whose conversation can be resumed."""
    session = running_session(**{"launch_id": "", **fields})
    session.runs.create(message_id="p0", state="completed", started_at=timezone.now())
    return session


# --- prompts ---


def test_prompt_to_a_running_session_is_queued_without_a_start() -> None:
    session = running_session()
    row, new = prompts.queue_prompt(session.id, "p1", "do it", make_user())
    assert new
    assert (row.state, row.text, row.by) == ("queued", "do it", make_user())
    assert names(session) == ["session.prompt.queued"]
    assert open_orders(session) == []


def test_prompt_to_a_stopped_session_orders_its_start() -> None:
    session = at_rest(desired_state="stopped", stopped_by_user=True)
    prompts.queue_prompt(session.id, "p1", "do it", make_user())
    assert open_orders(session) == [("start", {"mode": "auto"})]
    assert (fresh(session).desired_state, fresh(session).stopped_by_user) == ("running", False)


def test_repeated_prompt_returns_the_first_one() -> None:
    session = at_rest()
    first, _ = prompts.queue_prompt(session.id, "p1", "do it", make_user())
    before = database_dump.dump()
    again, new = prompts.queue_prompt(session.id, "p1", "do it", make_user())
    assert (again, new) == (first, False)
    assert database_dump.dump() == before


def test_repeated_prompt_is_answered_even_after_the_session_ended() -> None:
    session = at_rest()
    first, _ = prompts.queue_prompt(session.id, "p1", "do it", make_user())
    change(session, state="COMPLETED")
    assert prompts.queue_prompt(session.id, "p1", "do it", make_user()) == (first, False)


def test_same_message_id_with_another_text_is_a_conflict() -> None:
    session = running_session()
    prompts.queue_prompt(session.id, "p1", "do it", make_user())
    with pytest.raises(Conflict):
        prompts.queue_prompt(session.id, "p1", "do something else", make_user())


def test_two_prompts_order_one_start() -> None:
    session = at_rest()
    for message_id in ("p1", "p2"):
        prompts.queue_prompt(session.id, message_id, "do it", make_user())
    assert open_orders(session) == [("start", {"mode": "auto"})]
    assert prompt_states(session) == {"p1": "queued", "p2": "queued"}


def test_prompt_after_an_unfinished_stop_makes_the_session_run_again() -> None:
    session = running_session()
    intents.request_stop(session.id, make_user())
    prompts.queue_prompt(session.id, "p1", "do it", make_user())
    assert (fresh(session).desired_state, fresh(session).stopped_by_user) == ("running", False)


NO_TOKEN = {"resume_token": ""}
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], type[SessionsError]]] = [
    ("completed", {"state": "COMPLETED"}, {}, TerminalState),
    ("cancelled", {"state": "CANCELLED"}, {}, TerminalState),
    ("given up", {"state": "FAILED"}, {}, TerminalState),
    ("no token", {}, NO_TOKEN, MissingResumeToken),
    ("agent cannot", {}, {"supports_session_resume": False}, NotResumable),
    ("mismatch", {"context_mismatch": True}, {}, NotResumable),
    ("worktree gone", {"error_code": "worktree_missing", "state": "ERROR"}, {}, WorktreeMissing),
]


@pytest.mark.parametrize(("fields", "row", "error"), [line[1:] for line in REFUSED], ids=[line[0] for line in REFUSED])
def test_prompt_that_cannot_be_delivered_is_refused_without_any_write(
    fields: dict[str, Any], row: dict[str, Any], error: type[SessionsError]
) -> None:
    session = at_rest(execution=row, **fields)
    before = database_dump.dump()
    with pytest.raises(error):
        prompts.queue_prompt(session.id, "p1", "do it", make_user())
    assert database_dump.dump() == before


def test_held_prompt_cannot_be_sent_again_under_its_id() -> None:
    session = at_rest()
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="held")
    with pytest.raises(PromptInDoubt):
        prompts.queue_prompt(session.id, "p1", "do it", make_user())
    assert prompts.queue_prompt(session.id, "p2", "something else", make_user())[1]


@pytest.mark.parametrize("mode", ["auto", "resume", "fresh_start", "workspace_only"])
def test_worktree_that_was_lost_elsewhere_is_looked_for_by_the_next_start(mode: str) -> None:
    session = at_rest(execution={"status": "error", "error_code": "worktree_missing"}, error_code="worktree_missing")
    intents.request_resume(session.id, make_user(), mode)
    assert fresh(session).error_code == ""
    assert open_orders(session) == [("start", {"mode": mode})]


@pytest.mark.parametrize("message_id", ["", "x" * 129, "a\nb", "continue:1", "wait:1"])
def test_message_id_must_be_short_printable_and_unreserved(message_id: str) -> None:
    with pytest.raises(Invalid) as refused:
        prompts.queue_prompt(running_session().id, message_id, "do it", make_user())
    assert refused.value.details == {"field": "message_id"}


@pytest.mark.parametrize("text", ["", " \n ", "x" * (prompts.TEXT_LIMIT + 1), "a\0b", "half \ud83d"])
def test_prompt_text_must_be_valid_and_within_the_limit(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        prompts.queue_prompt(running_session().id, "p1", text, make_user())
    assert refused.value.details == {"field": "text"}


# --- starts ---


def test_session_has_at_most_one_open_start() -> None:
    session = at_rest()
    for mode in ("auto", "auto", "resume"):
        intents.request_resume(session.id, make_user(), mode)
    assert [kind for kind, _ in open_orders(session)] == ["start"]


def test_requested_mode_replaces_that_of_an_unclaimed_start() -> None:
    session = at_rest()
    intents.request_resume(session.id, None, "auto")
    intents.request_resume(session.id, make_user(), "fresh_start")
    prompts.queue_prompt(session.id, "p1", "do it", make_user())
    assert open_orders(session) == [("start", {"mode": "fresh_start"})]


def test_claimed_start_keeps_its_mode() -> None:
    session = at_rest()
    intents.request_resume(session.id, make_user(), "auto")
    session.intents.filter(done_at=None).update(claimed_generation=2)
    intents.request_resume(session.id, make_user(), "fresh_start")
    assert open_orders(session) == [("start", {"mode": "auto"})]


def test_resuming_a_running_session_creates_no_intent() -> None:
    session = running_session()
    before = database_dump.dump()
    intents.request_resume(session.id, make_user())
    assert database_dump.dump() == before
    with pytest.raises(AlreadyRunning):
        intents.request_resume(session.id, make_user(), "fresh_start")


def test_retry_by_a_user_resets_the_start_count() -> None:
    session = at_rest(state="FAILED", start_attempts=5, next_restart_at=timezone.now())
    intents.request_resume(session.id, make_user())
    assert (fresh(session).start_attempts, fresh(session).next_restart_at) == (0, None)


def test_unknown_mode_is_rejected() -> None:
    with pytest.raises(Invalid):
        intents.request_resume(at_rest().id, make_user(), "sideways")


@pytest.mark.parametrize(
    ("fields", "row", "mode", "error"),
    [
        ({"state": "COMPLETED"}, {}, "auto", TerminalState),
        ({}, NO_TOKEN, "resume", MissingResumeToken),
        ({"context_mismatch": True}, {}, "resume", NotResumable),
    ],
)
def test_impossible_start_is_refused_without_any_write(
    fields: dict[str, Any], row: dict[str, Any], mode: str, error: type[SessionsError]
) -> None:
    session = at_rest(execution=row, **fields)
    before = database_dump.dump()
    with pytest.raises(error):
        intents.request_resume(session.id, make_user(), mode)
    assert database_dump.dump() == before
