"""The three ways to start again: native, with history on the first prompt, fresh; none repeats the task."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.models import ExecutorRunning
from sessions_app.models import Prompt, TaskSession
from sessions_app.prompts.delivery import claim_next_prompt
from sessions_app.recovery.services.assessment import execution_of
from sessions_app.sessions.services.status import session_status
from sessions_app.starts import agent_start
from tests.supervisor.histories import prepare_history
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, change, fresh, prompt_states, running_session, shown_situation
from tests.supervisor.start_claims import claim_start

pytestmark = pytest.mark.django_db

DESCRIPTION = "Make the parser twice as fast."


def session_with_history(**execution: Any) -> TaskSession:
    """Return a session that has worked on its task and whose agent has exited."""
    session, journal = running_session(execution=execution), Journal()
    change(session.task, description=DESCRIPTION)
    Prompt.objects.create(session=session, message_id="p1", text=DESCRIPTION, state="sending")
    begins = journal.turn_begins("p1")
    tool = journal.tool("t1", title="edit parser.py", raw_input={"path": "parser.py"}, status="completed")
    done = journal.line("tool.update", tool_call_id="t1", status="completed", raw_output="3 lines changed")
    ingest(session, [*begins, tool, done, *journal.says("Faster."), journal.completes("p1")])
    ingest(session, [journal.exits()])
    return fresh(session)


def start_agent(
    session: TaskSession, mode: str = "auto", **answer: Any
) -> tuple[TaskSession, agent_start.AgentStartRequest]:
    plan = claim_start(session, mode)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    prepare_history(fresh(session))
    assert agent_start.write_agent_started(
        plan, plan.lease, order, {"resume_token": "c2", **answer}, agent_start.load_conversation_facts(plan.session_id)
    )
    prepare_history(fresh(session))
    ExecutorRunning.objects.filter(session=session).update(status="ready")
    return fresh(session), order


def sent_texts(session: TaskSession, *prompts: str) -> list[str]:
    """Return the texts that the agent gets when the user sends these prompts, one turn each."""
    journal, texts = Journal("epoch-2"), []
    for text in prompts:
        Prompt.objects.create(session=session, message_id=text, text=text, state="queued")
        sending = claim_next_prompt(session.id, MINE, journal.epoch, frozenset())
        assert sending is not None
        texts.append(sending.text)
        ingest(session, [*journal.turn_begins(text), journal.completes(text)])
    return texts


def test_native_resume_adds_nothing_to_the_prompt() -> None:
    session, order = start_agent(
        session_with_history(), outcome="loaded", replayed=2, replayed_user_texts=[DESCRIPTION]
    )
    assert (order.strategy, order.body["resume_token"]) == ("native", "conversation-1")
    assert prompt_states(session) == {"p1": "done"}
    assert sent_texts(session, "Go on.") == ["Go on."]


def test_history_is_sent_with_the_first_prompt_only() -> None:
    session = session_with_history(resume_token="")
    change(session.agent_profile, history_context_injection=True)
    unknown = session_status(fresh(session))["history"]
    assert set(unknown.values()) == {None}, "no status searches the conversation for secrets"
    prepare_history(fresh(session))
    before = session_status(fresh(session))
    assert before["resume_strategy"] == "history"
    assert before["history"].keys() == unknown.keys()
    assert before["history"]["estimated_tokens"] > 0
    assert (before["history"]["entries_told"], before["history"]["entries_cut"]) == (3, 0)
    session, order = start_agent(session, outcome="created")
    assert (order.strategy, order.body["resume_token"]) == ("history", None)
    assert prompt_states(session) == {"p1": "done"}, "the prompt is done, and no other was sent"
    receipt = session.receipts.get()
    assert (receipt.kind, receipt.verified) == ("injected", "pending")
    assert receipt.evidence["injection"] == before["history"] == session_status(fresh(session))["history"]
    assert "an estimated" in _banner(session)

    first, second = sent_texts(session, "Go on.", "And now?")
    lines = first.splitlines()
    assert lines[0] == "RESUME CONTEXT FOR CONTINUING TASK"
    assert f"[USER]: {DESCRIPTION}" in lines
    assert '[TOOL CALL: edit parser.py] {"path": "parser.py"}' in lines
    assert "[TOOL RESULT: edit parser.py] 3 lines changed" in lines
    assert "[ASSISTANT]: Faster." in lines
    assert lines[lines.index("=== CURRENT REQUEST ===") + 1] == "Go on."
    assert second == "And now?"
    assert session_status(fresh(session))["history"] is None


def _banner(session: TaskSession) -> str:
    return shown_situation(session).text


@pytest.mark.parametrize("mode", ["fresh_start", "auto"])
def test_fresh_agent_gets_nothing_before_the_first_prompt(mode: str) -> None:
    session = session_with_history()
    if mode == "auto":  # the agent has reported the conversation as gone, and history is disabled
        change(execution_of(session) or session, resume_token="", rejected_resume_token="conversation-1")
    session, order = start_agent(session, mode, outcome="created")
    assert (order.strategy, session.receipts.get().kind) == ("fresh", "fresh")
    assert prompt_states(session) == {"p1": "done"}
    assert session_status(session)["history"] is None
    assert sent_texts(session, "Go on.") == ["Go on."]


@pytest.mark.parametrize("strategy", ["native", "history", "fresh"])
def test_no_start_request_contains_the_task_description(strategy: str) -> None:
    session = session_with_history(**({} if strategy == "native" else {"resume_token": ""}))
    if strategy == "history":
        change(session.agent_profile, history_context_injection=True)
    plan = claim_start(session, "fresh_start" if strategy == "fresh" else "auto")
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    assert order.strategy == strategy
    assert DESCRIPTION not in str(dict(order.body))
    assert session.prompts.count() == 1
