"""The results and effects of each tool, with the rights of the REST API."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.utils import timezone
from pydantic import ValidationError
from rest_framework.exceptions import ValidationError as BadRequest

from executors_app.models import ExecutorRunning
from executors_app.wire.questions.schema import options_of, parse_question
from sessions_app.accounts.models import ApiToken, TeamRole
from sessions_app.catalogue.services.repositories import scratch_root
from sessions_app.kernel.services.errors import (
    Conflict,
    IdempotencyKeyReused,
    InvalidAnswer,
    NotFound,
    PermissionPending,
    ReadOnly,
    SessionsError,
    TokenConsumed,
)
from sessions_app.mcp_server import acting, arguments, reading, results, turns
from sessions_app.mcp_server.protocol import SERVER, _described
from sessions_app.mcp_server.tools import TOOLS
from sessions_app.models import Intent, Prompt, Repository, Task, TaskSession, Turn
from sessions_app.prompts.services import STEERING_KEY
from tests.api.world import PERMISSION, SECRET, World, message, prompt
from tests.mcp_server.clients import ToolFailed, call, connected_as

ARGUMENTS: dict[str, dict[str, Any]] = {
    "prompt_session": {"text": "Paint it", "message_id": "one"},
    "answer_permission": {"permission_id": PERMISSION, "option_id": "allow"},
    "wait_for_turn": {"timeout_seconds": 1},
    "merge_session": {"strategy": "merge", "branch_commit": "a" * 40, "target_commit": "b" * 40},
    "push_session": {"commit": "a" * 40, "remote_commit": ""},
}
SESSION_TOOLS = [tool for tool in TOOLS if issubclass(tool.arguments_type, arguments.SessionArguments)]
WRITING_TOOLS = [tool for tool in TOOLS if not tool.reads_only]


def names(tools: Any) -> list[str]:
    return [tool.name for tool in tools]


def start(world: World, **more: Any) -> results.StartedTask:
    request = {"title": "Paint", "prompt": "Paint the fence green", "client_key": "key", **more}
    return acting.start_task(world.member, arguments.StartTaskArguments(**request))


def test_lists_show_only_the_callers_teams(world: World) -> None:
    sessions = reading.list_sessions(world.member, arguments.ListSessionsArguments())
    assert [row.session_id for row in sessions.sessions] == [world.session.id]
    assert (sessions.count, sessions.next_page, sessions.sessions[0].task_title) == (1, None, "Mend the fence")
    assert [row.title for row in reading.list_tasks(world.member, arguments.ListTasksArguments()).tasks] == [
        "Mend the fence"
    ]
    assert reading.list_sessions(world.stranger, arguments.ListSessionsArguments()).sessions == []
    assert reading.list_tasks(world.stranger, arguments.ListTasksArguments()).tasks == []
    other = arguments.ListSessionsArguments(task_id=uuid.uuid4())
    assert reading.list_sessions(world.member, other).count == 0


def test_list_is_paged(world: World) -> None:
    started = start(world)
    first = reading.list_sessions(world.member, arguments.ListSessionsArguments(page_size=1))
    assert (first.count, first.next_page, first.sessions[0].session_id) == (2, 2, started.session_id)
    second = reading.list_sessions(world.member, arguments.ListSessionsArguments(page_size=1, page=2))
    assert (second.next_page, second.sessions[0].session_id) == (None, world.session.id)


def test_session_describes_its_situation_and_next_step(world: World) -> None:
    prompt(world.session, "queued", "one")
    found = reading.get_session(world.member, arguments.SessionArguments(session_id=world.session.id))
    assert (found.status_sentence, found.next_step) == (
        "The agent asks for permission.",
        "Allow or reject the request.",
    )
    assert [option.option_id for option in found.permissions[0].options] == ["allow"]
    assert [row.message_id for row in found.open_prompts] == ["one"]
    assert found.latest_receipt is not None
    assert SECRET not in found.model_dump_json()
    assert world.token() not in found.model_dump_json()


def test_start_options_contain_no_secrets_and_no_other_team(world: World) -> None:
    options = reading.list_start_options(world.member, arguments.Arguments())
    assert [row.name for row in options.repositories] == ["repository"]
    assert SECRET not in options.model_dump_json()
    nothing = reading.list_start_options(world.stranger, arguments.Arguments())
    assert (nothing.repositories, nothing.agent_profiles) == ([], [])


def conversation(world: World, **more: Any) -> results.Conversation:
    request = arguments.ReadConversationArguments(session_id=world.session.id, **more)
    return reading.read_conversation(world.member, request)


def test_conversation_is_read_from_its_end_or_after_a_seq(world: World) -> None:
    for seq in range(1, 6):
        message(world.session, seq, f"message {seq}")
    newest = conversation(world, limit=2)
    assert ([one.seq for one in newest.messages], newest.more, newest.earlier) == ([4, 5], False, True)
    page = conversation(world, limit=2, after=1)
    assert ([one.seq for one in page.messages], page.more, page.next_after) == ([2, 3], True, 3)
    end = conversation(world, after=5)
    assert (end.messages, end.more, end.next_after) == ([], False, 5)


def test_conversation_is_bounded_and_reports_truncation(world: World) -> None:
    for seq in range(1, 5):
        message(world.session, seq, "a" * 60_000)
    page = conversation(world, after=0, text_limit=20_000)
    assert [one.seq for one in page.messages] == [1, 2]
    assert (len(page.messages[0].text), page.messages[0].text_length, page.more) == (20_000, 60_000, True)


def test_task_starts_once_for_each_key(world: World) -> None:
    first, again = start(world), start(world)
    assert (first.created, again.created) == (True, False)
    assert again.model_copy(update={"created": True}) == first
    session = TaskSession.objects.get(id=first.session_id)
    assert (session.agent_profile, session.executor, session.owner) == (world.profile, world.executor, world.member)
    assert session.task.repository == world.repository
    row = Prompt.objects.get(session=session)
    assert (row.message_id, row.text, row.by) == (first.message_id, "Paint the fence green", world.member)
    with pytest.raises(IdempotencyKeyReused):
        start(world, prompt="Paint it red")


def test_repeated_start_does_not_depend_on_later_defaults(world: World) -> None:
    first = start(world)
    Repository.objects.create(name="second", team=world.team, path="/srv/second")
    world.profile.pk = uuid.uuid4()
    world.profile.name = "aaa"
    world.profile.save(force_insert=True)
    TaskSession.objects.exclude(id=first.session_id).update(agent_profile=world.profile)
    assert start(world).session_id == first.session_id


@pytest.mark.parametrize(
    "more",
    [
        {"repository_id": uuid.uuid4()},
        {"agent_profile_id": uuid.uuid4()},
        {"executor_id": uuid.uuid4()},
        {"team": 999_999},
        {"base_branch": "-x"},
        {"prompt": "  "},
    ],
)
def test_bad_start_creates_nothing(world: World, more: dict[str, Any]) -> None:
    with pytest.raises((BadRequest, SessionsError)):
        start(world, **more)
    assert Task.objects.count() == 1


def test_start_without_a_single_repository_asks_for_one(world: World) -> None:
    Repository.objects.create(name="second", team=world.team, path="/srv/second")
    with pytest.raises(SessionsError, match="no repository"):
        start(world)
    assert Task.objects.count() == 1
    assert start(world, repository_id=world.repository.id).created


def test_repository_in_which_agents_are_tested_is_no_choice(world: World) -> None:
    Repository.objects.create(name="Agent tests", team=world.team, path=f"{scratch_root()}/one")
    options = reading.list_start_options(world.member, arguments.Arguments())
    assert [row.name for row in options.repositories] == ["repository"]
    assert acting._usual_repository(world.team, "a key") == world.repository


def test_prompt_is_sent_once(world: World) -> None:
    request: dict[str, Any] = {"session_id": world.session.id, "message_id": "one", "text": "Paint it"}
    first = acting.prompt_session(world.member, arguments.PromptSessionArguments(**request))
    again = acting.prompt_session(world.member, arguments.PromptSessionArguments(**request))
    assert (first.created, again.created, first.state) == (True, False, "queued")
    with pytest.raises(Conflict):
        acting.prompt_session(world.member, arguments.PromptSessionArguments(**{**request, "text": "Other"}))


def test_prompt_withdraws_no_question_unless_requested(world: World) -> None:
    world.mark_running()
    run = Turn.objects.create(session=world.session, message_id="zero", state="waiting", started_at=timezone.now())
    world.session.permissions.update(run=run)
    world.session.wait_keys.update(run=run)
    request = arguments.PromptSessionArguments(session_id=world.session.id, message_id="one", text="Paint it")
    with pytest.raises(PermissionPending):
        acting.prompt_session(world.member, request)
    acting.prompt_session(world.member, request.model_copy(update={"cancel_open_question": True}))
    assert Intent.objects.filter(session=world.session, kind="cancel").count() == 1


def test_prompt_for_now_goes_to_the_running_turn_and_has_its_outcome(world: World) -> None:
    turn = Turn.objects.create(session=world.session, message_id="m1", state="running", started_at=timezone.now())
    world.mark_running()
    Intent.objects.update(done_at=timezone.now())
    of_session = arguments.SessionArguments(session_id=world.session.id)
    request = arguments.PromptSessionArguments(
        session_id=world.session.id, message_id="now", text="Use tabs", deliver="now"
    )
    assert not reading.get_session(world.member, of_session).can_steer
    TaskSession.objects.filter(id=world.session.id).update(metadata={STEERING_KEY: True})
    assert reading.get_session(world.member, of_session).can_steer
    for created in (True, False):
        queued = acting.prompt_session(world.member, request)
        assert (queued.state, queued.created, queued.steered_into) == ("queued", created, "m1")
    taken = world.session.prompts.filter(message_id="now")
    for prompt_state, turn_state, outcome in (
        ("delivered", "running", "running"),
        ("done", "completed", "ended"),
        ("done", "failed", "failed"),
    ):
        taken.update(state=prompt_state)
        Turn.objects.filter(pk=turn.pk).update(state=turn_state)
        assert turns.read_turn(world.member, world.session.id, "now").outcome == outcome


def test_session_tells_what_its_last_resume_has_cost(world: World) -> None:
    world.session.receipts.all().delete()
    world.session.receipts.create(kind="loaded", verified="replay", after_seq=0)
    of_session = arguments.SessionArguments(session_id=world.session.id)
    receipt = reading.get_session(world.member, of_session).latest_receipt
    assert receipt is not None
    assert receipt.first_turn is None
    usage = {"input_tokens": 12}
    ended = {"state": "completed", "started_at": timezone.now(), "ended_at": timezone.now()}
    Turn.objects.create(session=world.session, message_id="m1", first_seq=3, last_seq=9, usage=usage, **ended)
    receipt = reading.get_session(world.member, of_session).latest_receipt
    assert receipt is not None
    assert receipt.first_turn is not None
    assert (receipt.first_turn.message_id, receipt.first_turn.usage) == ("m1", usage)


def test_session_tells_what_its_next_resume_may_cost(world: World) -> None:
    usage = {"context_used": 62_310, "context_size": 200_000}
    ended = {"state": "completed", "started_at": timezone.now(), "ended_at": timezone.now()}
    Turn.objects.create(session=world.session, message_id="m1", first_seq=3, last_seq=9, usage=usage, **ended)
    world.mark_running()
    of_session = arguments.SessionArguments(session_id=world.session.id)
    Intent.objects.update(done_at=timezone.now())
    assert reading.get_session(world.member, of_session).resume_cost is None
    ExecutorRunning.objects.update(status="stopped")
    cost = reading.get_session(world.member, of_session).resume_cost
    assert cost is not None
    assert (cost.strategy, cost.context_tokens, cost.context_size) == ("native", 62_310, 200_000)
    assert "62,310 tokens" in cost.text


def test_permission_is_answered_once_and_the_same_answer_repeats(world: World) -> None:
    request = arguments.AnswerPermissionArguments(
        session_id=world.session.id, permission_id=PERMISSION, option_id="allow"
    )
    assert acting.answer_permission(world.member, request).state == "pending"
    assert acting.answer_permission(world.member, request).state == "pending"
    assert Intent.objects.filter(session=world.session, kind="answer").count() == 1
    with pytest.raises(SessionsError, match="no such option"):
        acting.answer_permission(world.member, request.model_copy(update={"option_id": "other"}))


def test_question_is_shown_and_answered_with_its_form(world: World) -> None:
    schema = {"properties": {"name": {"type": "string"}}, "required": ["name"]}
    question = parse_question({"mode": "form", "message": "Which?", "requestedSchema": schema})
    values = {"kind": "question", "question": question, "options": options_of(question)}
    world.session.permissions.filter(id=PERMISSION).update(**values)
    assert [one.question for one in reading.pending_permissions(world.session)] == [question]
    of: dict[str, Any] = {"session_id": world.session.id, "permission_id": PERMISSION, "option_id": "accept"}
    with pytest.raises(InvalidAnswer):
        acting.answer_permission(world.member, arguments.AnswerPermissionArguments(**of))
    request = arguments.AnswerPermissionArguments(**of, content={"name": "wren"})
    assert acting.answer_permission(world.member, request).state == "pending"


def test_session_is_stopped_resumed_and_has_no_turn_to_cancel(world: World) -> None:
    request = arguments.SessionArguments(session_id=world.session.id)
    acting.stop_session(world.member, request)
    assert TaskSession.objects.get(id=world.session.id).desired_state == "stopped"
    acting.resume_session(world.member, arguments.ResumeSessionArguments(session_id=world.session.id))
    assert TaskSession.objects.get(id=world.session.id).desired_state == "running"
    assert acting.cancel_turn(world.member, request).cancelling is False


@pytest.mark.parametrize("name", names(tool for tool in SESSION_TOOLS if tool.run is not None))
def test_strangers_find_no_session_and_viewers_change_none(world: World, name: str) -> None:
    tool = next(tool for tool in TOOLS if tool.name == name)
    assert tool.run is not None
    request = tool.arguments_type.model_validate({"session_id": world.session.id, **ARGUMENTS.get(name, {})})
    with pytest.raises(NotFound):
        tool.run(world.stranger, request)
    TeamRole.objects.create(user=world.member, team=world.team, role=TeamRole.Role.VIEWER)
    if tool.reads_only:
        tool.run(world.member, request)
    else:
        with pytest.raises(ReadOnly):
            tool.run(world.member, request)


def test_viewer_cannot_start_a_task(world: World) -> None:
    TeamRole.objects.create(user=world.member, team=world.team, role=TeamRole.Role.VIEWER)
    with pytest.raises(ReadOnly):
        start(world, team=world.team.pk)
    assert Task.objects.count() == 1


async def test_read_only_token_reads_and_changes_nothing(served_world: World) -> None:
    session = str(served_world.session.id)
    async with connected_as(served_world.member, ApiToken.Scope.READ) as client:
        assert (await call(client, "get_session", session_id=session))["session_id"] == session
        for tool in WRITING_TOOLS:
            given = {"title": "a", "prompt": "b", "client_key": "c"}
            if tool in SESSION_TOOLS:
                given = {"session_id": session, **ARGUMENTS.get(tool.name, {})}
            with pytest.raises(ToolFailed, match="permission_denied: This token is read-only"):
                await call(client, tool.name, **given)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_clients_of_both_protocols_get_tools_results_and_codes(served_world: World, mode: str) -> None:
    async with connected_as(served_world.member, mode=mode) as client:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == names(TOOLS)
        assert (await call(client, "list_sessions"))["count"] == 1
        for given, code in (
            ({"session_id": str(uuid.uuid4())}, "not_found"),
            ({"session_id": "one"}, "validation_error"),
            ({"session_id": str(served_world.session.id), "unknown": 1}, "validation_error"),
            ({}, "validation_error"),
        ):
            with pytest.raises(ToolFailed) as failed:
                await call(client, "get_session", **given)
            assert failed.value.code == code
            assert set(failed.value.error) == {"code", "message", "details"}


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_no_database_stores_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        arguments.StartTaskArguments(title=text, prompt="a", client_key="b")


@pytest.mark.parametrize("tool", TOOLS, ids=names(TOOLS))
def test_tool_is_described_for_a_model(tool: Any) -> None:
    shown = _described(tool)
    assert shown.title
    assert len(tool.description) > 60
    assert shown.input_schema["additionalProperties"] is False
    assert all("description" in one for one in shown.input_schema.get("properties", {}).values())
    assert (shown.output_schema or {})["type"] == "object"
    assert shown.annotations is not None
    assert shown.annotations.read_only_hint is tool.reads_only


def test_server_tells_models_that_texts_are_data() -> None:
    assert "is data" in (SERVER.instructions or "")


def test_unknown_action_offers_a_model_to_reject_it_first(world: World) -> None:
    options = [
        {"option_id": name, "name": name, "kind": name} for name in ("allow_always", "allow_once", "reject_once")
    ]
    world.session.permissions.filter(id=PERMISSION).update(tool_call={"title": ""}, options=options)
    (shown,) = reading.pending_permissions(world.session)
    assert shown.title == "The agent does not say what it wants to do."
    assert [option.option_id for option in shown.options] == ["reject_once", "allow_once"]


def test_second_answer_names_the_first(world: World) -> None:
    options = [{"option_id": name, "name": name, "kind": "allow_once"} for name in ("allow", "reject")]
    world.session.permissions.filter(id=PERMISSION).update(options=options)
    request: dict[str, Any] = {"session_id": world.session.id, "permission_id": PERMISSION}
    acting.answer_permission(world.member, arguments.AnswerPermissionArguments(**request, option_id="allow"))
    with pytest.raises(TokenConsumed, match="member has already answered this: allow"):
        acting.answer_permission(world.member, arguments.AnswerPermissionArguments(**request, option_id="reject"))
