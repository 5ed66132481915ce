"""The page of a session: what it says, what it offers, and what its forms do."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from executors_app.models import AgentProfile, ExecutorRunning
from sessions_app.kernel.rules.states import SessionState
from sessions_app.mcp_server import reading as mcp_reading
from sessions_app.mcp_server.arguments import SessionArguments
from sessions_app.models import Intent, Prompt, Task, TaskSession
from sessions_app.sessions.rules.situation_facts import HEADLINES, Code
from sessions_app.sessions.rules.situation_texts import CHOOSE_HOW_TO_CONTINUE
from tests.pages.world import World, first_prompt, ingest_lines, path_of

pytestmark = pytest.mark.any_database


def page(client: Client, session: TaskSession) -> str:
    return client.get(path_of(session)).text


def composer_is_open(html: str) -> bool:
    return "disabled" not in html[html.index("<textarea") : html.index("</textarea>")]


# --- the banner and the composer ---


HERE, ANEW = "Start fresh in this workspace", "Create new session"
NOTE = "Demo agent 1.2 announces session/load, but it failed on 3 Nov 2026: it does not support the request."


def plain(session: TaskSession) -> None:
    """Leave the session unchanged."""


def never_resumable(session: TaskSession) -> None:
    AgentProfile.objects.update(supports_session_resume=False)


def never_resumable_with_workspace(session: TaskSession) -> None:
    never_resumable(session)
    ExecutorRunning.objects.update(status="ready")


def with_token(session: TaskSession) -> None:
    ExecutorRunning.objects.update(resume_token="t")


def token_rejected(session: TaskSession) -> None:
    ExecutorRunning.objects.update(rejected_resume_token="t")


def never_offered(session: TaskSession) -> None:
    ExecutorRunning.objects.update(rejected_resume_token="t", supports_session_resume=False, capability_note=NOTE)
    TaskSession.objects.filter(id=session.id).update(error_code="resume_unsupported")


def with_values(**values: Any) -> Callable[[TaskSession], None]:
    def change(session: TaskSession) -> None:
        with_token(session)
        TaskSession.objects.filter(id=session.id).update(**values)

    return change


def unfinished(prompt_state: str, *, supports: bool = True, **values: Any) -> Callable[[TaskSession], None]:
    def leave(session: TaskSession) -> None:
        (with_token if supports else never_resumable)(session)
        TaskSession.objects.filter(id=session.id).update(**values)
        session.prompts.create(message_id="left", text="Half done.", state=prompt_state)

    return leave


def archived(session: TaskSession) -> None:
    session.task.archived_at = timezone.now()
    session.task.save()


@pytest.mark.parametrize(
    ("given", "says", "offers", "may_prompt"),
    [
        (with_token, "Kandev starts it automatically.", ["Resume session"], True),
        (never_resumable, "This agent doesn’t support resuming. Start a new session.", [HERE, ANEW], False),
        (never_resumable_with_workspace, "Create new session to continue messaging.", [HERE, ANEW], False),
        (plain, "The agent never reported its conversation id", [HERE, ANEW], False),
        (
            with_values(state="ERROR", error_message="It ended with status 1."),
            "It ended with status 1.",
            ["Try again", HERE, ANEW],
            True,
        ),
        (with_values(state="FAILED"), "not started again automatically", ["Try again"], False),
        (with_values(state="COMPLETED"), "This session is complete.", ["Create new session"], False),
        (
            with_values(context_mismatch=True),
            "Choose how to continue.",
            ["Accept the loaded conversation", HERE, ANEW],
            False,
        ),
        (token_rejected, "no longer knows this conversation", ["Try the old conversation again", HERE, ANEW], True),
        (
            never_offered,
            "offers no way to restore conversations",
            ["Try the old conversation again", HERE, ANEW],
            True,
        ),
        (never_offered, NOTE, [], True),
        (
            with_values(error_code="worktree_missing"),
            "The worktree of this session is gone and cannot be rebuilt.",
            ["Try again", "Create new session"],
            False,
        ),
        (
            with_values(desired_state="stopped", stopped_by_user=True),
            "This agent was stopped.",
            ["Resume session"],
            True,
        ),
        (unfinished("interrupted"), "A prompt was interrupted", ["Review prompts", "Resume session"], True),
        (unfinished("held"), "whether the agent received a prompt", ["Review prompts", "Resume session"], True),
        (
            unfinished("interrupted", desired_state="stopped", stopped_by_user=True),
            "A prompt was interrupted",
            ["Review prompts", "Resume session"],
            True,
        ),
        (
            unfinished("held", state="FAILED"),
            "agent received a prompt",
            ["Review prompts", "Try again", HERE, ANEW],
            False,
        ),
        (unfinished("held", supports=False), "agent received a prompt", ["Review prompts", HERE, ANEW], False),
        (
            unfinished("held", context_mismatch=True),
            "agent received a prompt",
            ["Review prompts", "Accept the loaded conversation", HERE, ANEW],
            False,
        ),
        (archived, "This task is archived.", ["Unarchive task"], False),
    ],
)
def test_banner_says_how_to_continue(
    given: Callable[[TaskSession], None],
    says: str,
    offers: list[str],
    may_prompt: bool,
    ada: Client,
    world: World,
) -> None:
    session = world.resting_session()
    given(session)
    html = page(ada, session)
    banner = html[html.index('<div id="part-banner">') : html.index('<p id="refused"')]
    assert says in banner
    assert [button for button in offers if f">{button}<" in banner] == offers
    assert composer_is_open(html) is may_prompt
    assert ('class="refusal"' in html) is not may_prompt, "a closed composer gives the reason"


@pytest.mark.parametrize(
    "given",
    [
        plain,
        never_resumable,
        never_offered,
        token_rejected,
        with_values(state="FAILED"),
        with_values(context_mismatch=True),
        with_values(state="ERROR", error_code="handshake_failed", error_message="It answered with an error."),
        archived,
    ],
)
def test_page_status_and_mcp_server_offer_the_same_choices(
    given: Callable[[TaskSession], None], ada: Client, world: World
) -> None:
    session = world.resting_session()
    given(session)
    html = page(ada, session)
    banner = html[html.index('<div id="part-banner">') : html.index('<p id="refused"')]
    status = ada.get(f"/api/v1{path_of(session)}status/").json()
    shown = mcp_reading.get_session(world.ada, SessionArguments(session_id=session.id))
    assert [each.model_dump() for each in shown.choices] == status["choices"]
    for choice in status["choices"]:
        assert f">{choice['text']}<" in banner
        assert choice["mode"] is None or f'name="mode" value="{choice["mode"]}"' in banner
    assert bool(status["choices"]) is (">Create new session<" in banner)


@pytest.mark.parametrize(
    ("button", "mode"),
    [("Resume session", "auto"), (HERE, "fresh_start"), ("Open the workspace", "workspace_only")],
)
def test_resume_button_requests_one_start(button: str, mode: str, ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    for _ in range(2):
        assert ada.post(f"{path_of(session)}resume/", {"mode": mode}).headers["Location"] == path_of(session)
    assert session.intents.get(done_at=None).payload == {"mode": mode}


@pytest.mark.parametrize(
    ("strategy", "says"),
    [("native", "The agent is loading its conversation…"), ("fresh", "The agent is starting.")],
)
def test_page_says_how_long_a_load_may_take(strategy: str, says: str, ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    ada.post(f"{path_of(session)}resume/", {"mode": "auto"})
    session.intents.filter(done_at=None).update(payload={"mode": "auto", "strategy": strategy})
    with_values(state="STARTING")(session)
    html = page(ada, session)
    assert says in html
    assert ("up to 240 s" in html) is (strategy == "native")
    assert '<dt>Agent</dt><dd><span class="pill busy">Starting</span>' in html


def test_start_of_the_workspace_alone_announces_no_agent(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    ada.post(f"{path_of(session)}resume/", {"mode": "workspace_only"})
    html = page(ada, session)
    assert "The workspace is being opened. No agent starts in it." in html
    assert "The agent is starting" not in html
    assert '<dt>Agent</dt><dd><span class="pill off">Not running</span>' in html


@pytest.mark.parametrize(
    ("agent_type", "mode", "is_shown"),
    [("pi", "ask", True), ("kilo", "ask", True), ("pi", "auto_approve", False), ("custom_acp", "ask", False)],
)
def test_page_says_that_an_agent_never_asks(
    agent_type: str, mode: str, is_shown: bool, ada: Client, world: World
) -> None:
    session = world.resting_session(resume_token="t")
    AgentProfile.objects.update(agent_type=agent_type, permission_mode=mode)
    assert ("was observed to run tools without asking" in page(ada, session)) is is_shown


def test_mismatch_is_explained_in_the_same_words_everywhere(ada: Client, world: World) -> None:
    session = world.resting_session()
    with_values(context_mismatch=True)(session)
    html = page(ada, session)
    banner, rest = html.split('<p id="refused"')
    answer = ada.post(f"{path_of(session)}resume/", {"mode": "auto"}, headers={"Accept": "application/json"})
    for shown in (banner, rest, answer.json()["message"]):
        assert HEADLINES[Code.CONTEXT_MISMATCH] in shown
        assert CHOOSE_HOW_TO_CONTINUE in shown
        assert "Create a new session" not in shown


def test_refused_start_says_why(ada: Client, world: World) -> None:
    session = world.resting_session()
    never_resumable(session)
    answer = ada.post(f"{path_of(session)}resume/", {"mode": "auto"}, follow=True)
    by_script = ada.post(f"{path_of(session)}resume/", {"mode": "auto"}, headers={"Accept": "application/json"})
    assert (by_script.status_code, by_script.json()["code"]) == (409, "not_resumable")
    assert by_script.json()["message"] in answer.text


# --- prompts ---


def test_repeated_prompt_form_queues_one_prompt(ada: Client, world: World) -> None:
    session = world.running_session()
    form = {"message_id": str(uuid.uuid4()), "text": "One\r\nTwo"}
    for _ in range(2):
        ada.post(f"{path_of(session)}prompt/", form)
    row = session.prompts.get(message_id=form["message_id"])
    assert (row.text, row.state, row.by) == ("One\nTwo", "queued", world.ada)
    html = page(ada, session)
    assert "Queued" in html
    assert "Withdraw" in html


def test_json_response_contains_the_next_message_id(ada: Client, world: World) -> None:
    session = world.running_session()
    form = {"message_id": "m1", "text": "One"}
    answer = ada.post(f"{path_of(session)}prompt/", form, headers={"Accept": "application/json"})
    assert uuid.UUID(answer.json()["next_message_id"])


def test_every_page_has_its_own_message_id(ada: Client, world: World) -> None:
    session = world.session()
    first, second = (ada.get(path_of(session)).context["message_id"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("action", "state", "after"),
    [
        ("withdraw", "queued", "withdrawn"),
        ("dismiss", "held", "dismissed"),
        ("dismiss", "interrupted", "dismissed"),
        ("resend", "held", "dismissed"),
        ("resend", "interrupted", "dismissed"),
        ("continue", "interrupted", "dismissed"),
    ],
)
def test_user_can_resolve_an_unsettled_prompt(action: str, state: str, after: str, ada: Client, world: World) -> None:
    session = world.running_session()
    row = session.prompts.create(message_id="odd/name: x", text="Do it.", state=state)
    assert "Do it." in page(ada, session)

    ada.post(f"{path_of(session)}{action}/", {"message_id": row.message_id})

    row.refresh_from_db()
    assert row.state == after
    made = Prompt.objects.filter(state="queued").first()
    assert (made is not None) is (action in ("resend", "continue"))
    if action == "resend":
        assert made is not None and made.text == "Do it."


def test_held_prompt_offers_send_again_and_dismiss(ada: Client, world: World) -> None:
    session = world.running_session()
    session.prompts.create(message_id="h", text="Deploy it.", state="held")
    html = page(ada, session)
    assert "It is not known whether the agent received this." in html
    assert ">Send again<" in html
    assert ">Dismiss<" in html
    assert ">Continue<" not in html


def test_done_task_offers_only_to_dismiss_an_unsettled_prompt(ada: Client, world: World) -> None:
    session = world.running_session()
    session.prompts.create(message_id="h", text="Deploy it.", state="held")
    session.prompts.create(message_id="i", text="Test it.", state="interrupted")
    Task.objects.update(state="DONE")
    html = page(ada, session)
    assert ">Reopen task<" in html
    assert [html.count(f">{text}<") for text in ("Send again", "Continue", "Dismiss")] == [0, 0, 2]


# --- control ---


@pytest.mark.parametrize(("action", "form", "kind"), [("cancel", {}, "cancel"), ("stop", {}, "stop")])
def test_turn_can_be_cancelled_and_agent_stopped(
    action: str, form: dict[str, str], kind: str, ada: Client, world: World
) -> None:
    session = world.running_session()
    html = page(ada, session)
    assert ">Cancel turn<" in html
    assert ">Stop<" in html
    ada.post(f"{path_of(session)}{action}/", form)
    assert session.intents.get(done_at=None).kind == kind


def test_session_can_be_closed(ada: Client, world: World) -> None:
    session = world.running_session()
    ada.post(f"{path_of(session)}close/", {"as": "completed"})
    assert session.intents.get(done_at=None).payload == {"as": "completed"}


@pytest.mark.parametrize("action", ["explode", "Stop", "__class__"])
def test_unknown_action_returns_404(action: str, ada: Client, world: World) -> None:
    assert ada.post(f"{path_of(world.session())}{action}/").status_code == 404


def test_get_requests_change_nothing(ada: Client, world: World) -> None:
    session = world.resting_session()
    for action in ("stop", "resume", "prompt", "close"):
        assert ada.get(f"{path_of(session)}{action}/").status_code == 405
    page(ada, session)
    assert not Intent.objects.filter(done_at=None).exists()


def test_missing_isolation_is_shown(ada: Client, world: World) -> None:
    assert "Runs unsandboxed on this machine" in page(ada, world.session())


# --- labels ---


def test_workspace_panel_shows_starting(ada: Client, world: World) -> None:
    session = world.running_session()
    assert 'data-workspace="ready"' in page(ada, session)
    ExecutorRunning.objects.update(status="starting")
    html = page(ada, session)
    assert 'data-workspace="starting"' in html
    assert '<span class="spinner" aria-hidden="true"></span> <span class="pill busy">Starting</span>' in html


@pytest.mark.parametrize(("given", "mode"), [(with_token, "auto"), (never_resumable, "workspace_only"), (archived, "")])
def test_failed_executor_offers_a_retry(
    given: Callable[[TaskSession], None], mode: str, ada: Client, world: World
) -> None:
    session = world.resting_session()
    ExecutorRunning.objects.update(status="error")
    given(session)
    html = page(ada, session)
    strip = html[html.index('<dl class="strip"') : html.index("</dl>")]
    assert '<span class="pill bad">Error</span>' in strip
    assert (f'value="{mode}">Retry</button>' in strip) is bool(mode)


def test_page_shows_the_newest_receipt_and_its_evidence(ada: Client, world: World) -> None:
    session = world.running_session()
    session.receipts.create(kind="fresh")
    session.receipts.create(kind="loaded", verified="replay", evidence={"replayed_messages": 4, "left_out": None})
    html = page(ada, session)
    strip = html[html.index('<dl class="strip"') : html.index("</dl>")]
    assert "Loaded" in strip
    assert "New conversation" not in strip
    assert "<li>It replayed 4 messages.</li>" in html
    assert "<dt>replayed messages</dt><dd>4</dd>" in html, "in the raw record"
    assert "left out" not in html


def test_missing_program_is_shown_with_the_command_and_no_retry(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    wording = "Codex is not installed on the executor “Here”. Install it there with `npm install -g x`, then try again."
    later = timezone.now() + timedelta(hours=23)
    TaskSession.objects.update(
        state="ERROR", error_code="program_missing", error_message=wording, next_restart_at=later, start_attempts=0
    )
    html = page(ada, session)
    banner = html[html.index('<div id="part-banner">') : html.index('<p id="refused"')]
    assert "<code>npm install -g x</code>" in banner
    assert "once a day" in banner
    assert ">Try again<" in banner
    assert "number 1" not in html
    assert session.task.title in ada.get("/?needs=1").text, "the board lists the task as needing attention"


def test_next_start_is_shown_in_the_readers_time(ada: Client, world: World) -> None:
    session = world.resting_session()
    at = timezone.now() + timedelta(seconds=20)
    TaskSession.objects.update(state="ERROR", error_code="agent_exited", next_restart_at=at, start_attempts=2)
    assert f"data-exact>{at:%H:%M:%S} UTC</time>" in page(ada, session)


def test_every_state_can_be_rendered(ada: Client, world: World) -> None:
    session = world.session()
    for state in SessionState:
        TaskSession.objects.update(state=state)
        assert ada.get(path_of(session)).status_code == 200
        assert ada.get("/").status_code == 200


def test_new_session_is_starting_without_a_resume_button(ada: Client, world: World) -> None:
    html = page(ada, world.session())
    assert "The agent is starting." in html
    assert "Resume session" not in html
    assert first_prompt(TaskSession.objects.get()).text in html


def test_page_names_the_processes_that_a_stop_would_end(ada: Client, world: World) -> None:
    session = world.running_session()
    since = "2026-01-31T12:00:00+00:00"
    listed = [{"command": "npm run <b>dev</b>", "since": since}, {"command": "rm \u202efdp.exe", "since": since}]
    done = {"kind": "turn.completed", "message_id": first_prompt(session).message_id}
    ingest_lines(session, done, {"kind": "agent.processes", "processes": listed, "count": 23})
    html = page(ada, session)
    named = "npm run &lt;b&gt;dev&lt;/b&gt;; rm ⟦RLO⟧fdp.exe; 21 more"
    assert html.count(f"Stopping ends 23 processes that the agent has left running: {named}.") == 2, "stop and close"
    assert "<code>npm run &lt;b&gt;dev&lt;/b&gt;</code>" in html
    assert "\u202e" not in html
    assert "And 21 more." in html
    assert "23 processes that it started still run" in html
