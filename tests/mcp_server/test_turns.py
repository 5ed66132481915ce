"""The state of a turn: the table of outcomes, the answer of an ended turn, and waiting for one."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from django.utils import timezone

from sessions_app.accounts.models import ApiToken
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.kernel.rules.states import PromptKind, PromptState, RunState
from sessions_app.kernel.services.errors import NotFound
from sessions_app.mcp_server import acting, arguments, results, turns
from sessions_app.mcp_server.endpoint import Caller
from sessions_app.mcp_server.results import Outcome
from sessions_app.models import Prompt, TaskSession, Turn
from sessions_app.prompts.services import withdraw_prompt
from sessions_app.stream.live.authentication import Principal
from sessions_app.stream.live.hub import get_hub
from tests.api.world import World, message, prompt
from tests.mcp_server.clients import ToolFailed, call, connected_as
from tests.waiting import eventually_async

RUN_OUTCOMES = {
    None: Outcome.IN_DOUBT,
    "running": Outcome.RUNNING,
    "waiting": Outcome.NEEDS_ANSWER,
    "completed": Outcome.ENDED,
    "failed": Outcome.FAILED,
    "cancelled": Outcome.CANCELLED,
    "interrupted": Outcome.INTERRUPTED,
}


@pytest.mark.parametrize(
    ("state", "run", "outcome"),
    [
        ("queued", None, Outcome.QUEUED),
        ("sending", None, Outcome.RUNNING),
        ("accepted", "running", Outcome.RUNNING),
        ("delivered", "running", Outcome.RUNNING),
        ("delivered", "waiting", Outcome.NEEDS_ANSWER),
        ("held", None, Outcome.IN_DOUBT),
        ("interrupted", "interrupted", Outcome.INTERRUPTED),
        ("dismissed", "interrupted", Outcome.DISMISSED),
        ("withdrawn", None, Outcome.WITHDRAWN),
        *(("done", run, outcome) for run, outcome in RUN_OUTCOMES.items()),
    ],
)
def test_outcome_follows_from_prompt_and_run(state: str, run: str | None, outcome: Outcome) -> None:
    assert turns.turn_outcome(state, run, is_held_up=False) == outcome


def test_turn_whose_requests_are_answered_goes_on(world: World) -> None:
    world.mark_running()
    row, now = prompt(world.session, "delivered", "one"), timezone.now()
    run = Turn.objects.create(
        session=world.session, message_id=row.message_id, state="waiting", wait_kind="permission", started_at=now
    )
    world.session.permissions.update(run=run)
    world.session.wait_keys.update(run=run)
    assert turn_of(world).outcome == Outcome.NEEDS_ANSWER
    (waiting,) = turn_of(world).permissions
    answer = arguments.AnswerPermissionArguments(
        session_id=world.session.id, permission_id=waiting.permission_id, option_id="allow"
    )
    assert acting.answer_permission(world.member, answer).state == "pending", "the agent has not got it yet"
    turn = turn_of(world)
    assert (turn.outcome, turn.finished, turn.permissions) == (Outcome.RUNNING, False, [])


@pytest.mark.parametrize("state", list(PromptState))
def test_every_state_of_a_prompt_has_an_outcome(state: PromptState) -> None:
    outcomes = {turns.turn_outcome(state, run, is_held_up=True) for run in (None, *RunState)}
    assert (Outcome.BLOCKED in outcomes) is (state == PromptState.QUEUED)


def turn_of(world: World, message_id: str | None = None) -> results.Turn:
    return turns.read_turn(world.member, world.session.id, message_id)


def ended(session: TaskSession, message_id: str, run: str = "completed", first_seq: int = 0) -> Prompt:
    """Create a prompt whose turn has ended."""
    row, now = prompt(session, "done", message_id), timezone.now()
    place = {"started_at": now, "ended_at": now, "first_seq": first_seq}
    Turn.objects.create(session=session, message_id=message_id, state=run, **place)
    return row


def add_user_message(session: TaskSession, seq: int, message_id: str) -> None:
    """Add a prompt to the conversation."""
    row = message(session, seq, "Paint it")
    row.role, row.key = "user", message_id
    row.save()


def test_answer_is_the_agents_last_message_of_that_turn(world: World) -> None:
    ended(world.session, "one")
    ended(world.session, "two", first_seq=3)
    add_user_message(world.session, 1, "one")
    message(world.session, 2, "Let me see.")
    message(world.session, 3, "It is ", "green.")
    add_user_message(world.session, 4, "two")
    message(world.session, 5, "Blue.")
    one, two = turn_of(world, "one"), turn_of(world, "two")
    assert (one.outcome, one.finished, one.answer, one.started_at_seq) == (Outcome.ENDED, True, "It is green.", 0)
    assert (two.answer, two.started_at_seq) == ("Blue.", 3)


def test_long_answer_is_truncated_and_its_length_reported(world: World) -> None:
    ended(world.session, "one")
    add_user_message(world.session, 1, "one")
    message(world.session, 2, "a" * 30_000)
    turn = turn_of(world)
    assert (len(turn.answer or ""), turn.answer_length) == (turns.ANSWER_LIMIT, 30_000)


@pytest.mark.parametrize("run", ["failed", "cancelled", "interrupted"])
def test_turn_without_success_has_no_answer(world: World, run: str) -> None:
    ended(world.session, "one", run)
    add_user_message(world.session, 1, "one")
    message(world.session, 2, "I have begun")
    turn = turn_of(world, "one")
    assert (turn.outcome, turn.finished, turn.answer) == (run, True, None)


def test_newest_prompt_is_waited_for_unless_it_was_withdrawn(world: World) -> None:
    ended(world.session, "one")
    prompt(world.session, "withdrawn", "two")
    assert turn_of(world).message_id == "one"
    prompt(world.session, "delivered", "three")
    Prompt.objects.create(session=world.session, message_id="check", text="?", kind=PromptKind.CHECK, state="done")
    assert turn_of(world).message_id == "three"


def test_withdrawn_prompt_is_finished_without_an_answer(world: World) -> None:
    prompt(world.session, "withdrawn", "two")
    turn = turn_of(world, "two")
    assert (turn.outcome, turn.finished, turn.answer) == (Outcome.WITHDRAWN, True, None)


@pytest.mark.parametrize(("field", "state"), [("resent_as", "done"), ("continued_by", "dismissed")])
def test_replaced_prompt_is_followed(world: World, field: str, state: str) -> None:
    first, second = prompt(world.session, state, "first"), prompt(world.session, "delivered", "second")
    Prompt.objects.filter(id=first.id).update(**{field: second})
    assert (turn_of(world, "first").message_id, turn_of(world, "first").outcome) == ("second", Outcome.RUNNING)


def test_withdrawn_retry_leaves_the_failed_turn(world: World) -> None:
    first, retry = ended(world.session, "first", "failed"), prompt(world.session, "withdrawn", "retry:1")
    Prompt.objects.filter(id=first.id).update(resent_as=retry)
    assert (turn_of(world, "first").message_id, turn_of(world, "first").outcome) == ("first", Outcome.FAILED)


def test_queued_prompt_of_a_stopped_session_is_blocked(world: World) -> None:
    prompt(world.session, "queued")
    TaskSession.objects.filter(id=world.session.id).update(desired_state="stopped")
    turn = turn_of(world)
    assert (turn.outcome, turn.finished) == (Outcome.BLOCKED, True)


def test_queued_prompt_of_an_agent_that_needs_a_person_is_blocked(world: World) -> None:
    prompt(world.session, "queued")
    TaskSession.objects.filter(id=world.session.id).update(state="ERROR", error_code="auth_required")
    assert turn_of(world).outcome == Outcome.QUEUED, "the start is still ordered"
    world.session.intents.update(done_at=timezone.now())
    assert turn_of(world).outcome == Outcome.BLOCKED


def test_turns_are_hidden_from_strangers_and_unknown_prompts_named(world: World) -> None:
    with pytest.raises(NotFound, match="no such session"):
        turns.read_turn(world.stranger, world.session.id, None)
    with pytest.raises(NotFound, match="no such prompt"):
        turn_of(world, "unknown")
    with pytest.raises(NotFound, match="no prompt to wait for"):
        turn_of(world)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_wait_ends_when_the_prompt_is_withdrawn(served_world: World, mode: str) -> None:
    session = served_world.session
    async with connected_as(served_world.member, mode=mode) as client:
        identity = {"session_id": str(session.id), "message_id": str(uuid.uuid4())}
        await call(client, "prompt_session", text="Paint it", **identity)
        waiting = asyncio.create_task(call(client, "wait_for_turn", timeout_seconds=120, **identity))
        await eventually_async(_has_waiting_call)
        await run_in_database(withdraw_prompt, session.id, identity["message_id"])
        turn: dict[str, Any] = await waiting
    assert (turn["outcome"], turn["answer"]) == ("withdrawn", None)


async def test_waiting_call_reports_progress(served_world: World) -> None:
    session, reports = served_world.session, list[tuple[float, str]]()
    row = await run_in_database(prompt, session, "queued")
    token, _ = await run_in_database(ApiToken.mint, served_world.member, "an agent", ApiToken.Scope.READ, None)

    async def progress(done: float, total: float, text: str) -> None:
        reports.append((total, text))
        await run_in_database(withdraw_prompt, session.id, row.message_id)

    request = arguments.WaitForTurnArguments(session_id=session.id, timeout_seconds=120)
    turn = await turns.wait_for_turn(Caller(served_world.member, Principal.of_token(token)), request, progress)
    assert reports == [(120, "The agent asks for permission.")]
    assert turn.outcome == Outcome.WITHDRAWN


async def test_wait_reports_its_timeout(served_world: World) -> None:
    await run_in_database(prompt, served_world.session, "queued")
    async with connected_as(served_world.member) as client:
        turn = await call(client, "wait_for_turn", session_id=str(served_world.session.id), timeout_seconds=1)
    assert (turn["outcome"], turn["finished"], turn["answer"]) == ("queued", False, None)


async def test_wait_ends_when_the_caller_leaves_the_team(served_world: World) -> None:
    await run_in_database(prompt, served_world.session, "queued")
    async with connected_as(served_world.member) as client:
        waiting = asyncio.create_task(
            call(client, "wait_for_turn", session_id=str(served_world.session.id), timeout_seconds=120)
        )
        await eventually_async(_has_waiting_call)
        await run_in_database(served_world.member.groups.clear)
        with pytest.raises(ToolFailed, match="not_found"):
            await waiting


def _has_waiting_call() -> bool:
    return any(isinstance(one, turns.TurnWatcher) for one in get_hub().subscribers)
