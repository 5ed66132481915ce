"""Every way in which resuming a conversation can fail, and its result; a new conversation never starts silently.

Each row is one real resume with a scripted agent behind agentctl's own driver: agent type, what the agent does, and the
expected session, receipt, token and page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from sessions_app.models import TaskSession
from sessions_app.recovery.services.assessment import assess_session, execution_of
from sessions_app.sessions.views.session_summary import banner_buttons
from sessions_app.starts.outcomes import REPORTED_GONE
from tests.agents.scripts import Action, Script, agent, chunk, error, result
from tests.supervisor.native_resume import LAST_REQUEST, TOKEN, Resume
from tests.supervisor.rows import change, names, shown_situation

pytestmark = pytest.mark.django_db

NOT_FOUND = error(-32601, "Method not found")
OFTEN_ERRS = timedelta(seconds=91)


def load(*actions: Action) -> Script:
    return agent(load=True, session_load=list(actions))


@dataclass(frozen=True)
class Outcome:
    """The expected result of a failed load; ``page`` is a part of the banner."""

    state: str
    token: str
    next_strategy: str | None
    page: str
    buttons: tuple[str, ...]
    comes_again: bool


GONE = Outcome(
    "WAITING_FOR_INPUT",
    "aside",
    "fresh",
    "With your next prompt it starts a new conversation",
    ("Try the old conversation again", "Start fresh in this workspace", "Create new session"),
    comes_again=False,
)
GONE_WITH_HISTORY = Outcome(
    "WAITING_FOR_INPUT",
    "aside",
    "history",
    "With your next prompt it receives the conversation so far",
    ("Try the old conversation again", "Start fresh in this workspace", "Create new session"),
    comes_again=False,
)
AGAIN = Outcome(
    "ERROR",
    "kept",
    "native",
    "The last start failed. The next one is at",
    ("Try again", "Start fresh in this workspace", "Create new session"),
    comes_again=True,
)
NOT_INSTALLED = replace(AGAIN, page="was not found on the executor")
LOGGED_OUT = replace(AGAIN, page="is not logged in on the executor")
USER_DECIDES = Outcome(
    "ERROR",
    "kept",
    None,
    "The agent loaded a conversation that is not the one shown here",
    ("Accept the loaded conversation", "Start fresh in this workspace", "Create new session"),
    comes_again=False,
)

SESSION_GONE = f"conversation {TOKEN} is gone"
FAILURES: dict[str, tuple[str, Script | None, str, Outcome]] = {
    # what the agent reports about the conversation: the patterns of its type decide, not the code
    "codex -32002": ("codex", load(error(-32002, f"Resource not found: {TOKEN}")), "token_rejected", GONE),
    "codex -32603": ("codex", load(error(-32603, "no rollout found for thread id")), "token_rejected", GONE),
    "codex in data": ("codex", load(error(-32603, "x", {"d": "Resource not found"})), "token_rejected", GONE),
    "claude -32002": ("claude_code", load(error(-32002, "Resource not found")), "token_rejected", GONE),
    "claude -32603": (
        "claude_code",
        load(error(-32603, f"No conversation found with session ID: {TOKEN}")),
        "token_rejected",
        GONE,
    ),
    "opencode session": (
        "opencode",
        load(error(-32603, "OpenCode service failure", {"service": "session"})),
        "token_rejected",
        GONE,
    ),
    "codex -32000": ("codex", load(error(-32000, "Resource not found")), "token_rejected", GONE),
    "demo": ("demo", load(error(-32002, SESSION_GONE)), "token_rejected", GONE),
    "after half a replay": (
        "demo",
        load(chunk("user", LAST_REQUEST), error(-32002, SESSION_GONE)),
        "token_rejected",
        GONE,
    ),
    "gemini twice": ("gemini", load(error(-32603, "No previous sessions found")), "token_rejected", GONE_WITH_HISTORY),
    # errors unrelated to the conversation keep the token and are retried
    "codex internal": ("codex", load(error(-32603, "Internal error")), "handshake_failed", AGAIN),
    "codex busy": ("codex", load(error(-32603, "the database is locked")), "handshake_failed", AGAIN),
    "claude in use": ("claude_code", load(error(-32603, "Session is already in use.")), "handshake_failed", AGAIN),
    "opencode provider": (
        "opencode",
        load(error(-32603, "OpenCode service failure", {"service": "provider"})),
        "handshake_failed",
        AGAIN,
    ),
    "copilot": ("copilot", load(error(-32602, "Unknown sessionId")), "handshake_failed", AGAIN),
    "amp": ("amp", load(error(-32602, "Invalid params")), "handshake_failed", AGAIN),
    "auggie": ("auggie", load(error(-32603, "Request was aborted.")), "handshake_failed", AGAIN),
    "any agent -32002": ("custom_acp", load(error(-32002, "Resource not found")), "handshake_failed", AGAIN),
    "any agent -32002, ours": (
        "custom_acp",
        load(error(-32002, f"Resource not found: {TOKEN}")),
        "token_rejected",
        GONE,
    ),
    "qwen": ("qwen", load(error(-32002, f"Resource not found: session:{TOKEN}")), "token_rejected", GONE_WITH_HISTORY),
    "vibe": (
        "mistral_vibe",
        load(error(-32602, f"Session not found: {TOKEN}", {"session_id": TOKEN})),
        "token_rejected",
        GONE,
    ),
    "fast-agent": ("fast_agent", load(error(-32002, "Session not found: it")), "token_rejected", GONE),
    "any agent -32600": ("custom_acp", load(error(-32600, "No sessions directory found")), "handshake_failed", AGAIN),
    "no error object": ("codex", load('{"jsonrpc": "2.0", "id": $ID, "error": "no"}'), "handshake_failed", AGAIN),
    "wants a login": ("codex", load(error(-32000, "Authentication required")), "auth_required", LOGGED_OUT),
    # claimed and actual capabilities
    "offers nothing": ("codex", agent(), "resume_unsupported", GONE),
    "load only claimed": ("codex", load(NOT_FOUND), "resume_unsupported", GONE),
    "both only claimed": (
        "codex",
        agent(load=True, resume=True, session_load=[NOT_FOUND], session_resume=[NOT_FOUND]),
        "resume_unsupported",
        GONE,
    ),
    "resume refused": (
        "codex",
        agent(resume=True, session_resume=[error(-32603, "no rollout found")]),
        "token_rejected",
        GONE,
    ),
    "resume fails": ("codex", agent(resume=True, session_resume=[error(-32603, "Oops")]), "handshake_failed", AGAIN),
    # the moment of the failure
    "no program": ("codex", None, "program_missing", NOT_INSTALLED),
    "ends at once": ("codex", agent(load=True, initialize=[4]), "agent_exited", AGAIN),
    "closes its output": ("codex", agent(load=True, initialize=["$CLOSE"]), "agent_exited", AGAIN),
    "another protocol": ("codex", agent(initialize=[result({"protocolVersion": 2})]), "handshake_failed", AGAIN),
    "no protocol": ("codex", agent(initialize=[result("hello")]), "handshake_failed", AGAIN),
    "refuses to begin": ("codex", agent(initialize=[error(-32603, "Resource not found")]), "handshake_failed", AGAIN),
    "ends in the load": ("codex", load(chunk("user", LAST_REQUEST), 3), "agent_exited", AGAIN),
    "closes in the load": ("codex", load("$CLOSE"), "agent_exited", AGAIN),
    "silent from the start": ("codex", agent(load=True, initialize=[]), "start_timeout", AGAIN),
    "silent in the load": ("codex", load(), "start_timeout", AGAIN),
    "silent after a replay": ("codex", load(chunk("user", LAST_REQUEST)), "start_timeout", AGAIN),
    # false success
    "another conversation": ("codex", load(chunk("user", "paint it"), result({})), "context_mismatch", USER_DECIDES),
    "an empty conversation": ("codex", load(result({})), "context_mismatch", USER_DECIDES),
    "without its user": ("codex", load(chunk("agent", "Hello!"), result(None)), "context_mismatch", USER_DECIDES),
}
HANGS_IN = {
    "silent from the start": "initialize",
    "silent in the load": "session/load",
    "silent after a replay": "session/load",
}


def _page(session: TaskSession) -> tuple[str, tuple[str, ...]]:
    """Return the banner's text and buttons after a supervisor pass."""
    shown = shown_situation(session)
    return shown.text, tuple(button.text for button in banner_buttons(shown, assess_session(session)))


@pytest.mark.parametrize("name", FAILURES)
def test_failed_load_has_the_expected_result(name: str, tmp_path: Path) -> None:
    kind, script, code, fate = FAILURES[name]
    resume = Resume(tmp_path, kind)
    if name == "gemini twice":
        reported_at = timezone.now() - OFTEN_ERRS
        change(resume.session, metadata={**resume.session.metadata, REPORTED_GONE: reported_at.isoformat()})
    session = resume.run(script, hangs_in=HANGS_IN.get(name, ""))

    receipt = session.receipts.get()
    assert (receipt.kind, receipt.verified, receipt.reason) == ("failed", "none", code)
    assert (session.state, session.error_code, resume.token_outcome()) == (fate.state, code, fate.token)
    assert assess_session(session).cause.strategy == fate.next_strategy
    assert (session.next_restart_at is not None) is fate.comes_again
    text, buttons = _page(session)
    assert fate.page in text
    assert buttons == fate.buttons
    assert session.error_message
    assert receipt.evidence["message"] in session.error_message
    assert TOKEN not in f"{session.error_message} {receipt.evidence}"
    assert "session/new" not in resume.methods(), "no new conversation is started unnoticed"
    assert (session.launch_id, session.inject_history) == ("", False)
    assert names(session).count("session.receipt") == 1


def test_table_has_at_least_thirty_failures() -> None:
    assert len(FAILURES) >= 30


@pytest.mark.parametrize("ago", [None, timedelta(seconds=30)])
def test_error_of_an_error_prone_agent_is_retried_before_it_counts(ago: timedelta | None, tmp_path: Path) -> None:
    resume = Resume(tmp_path, "gemini")
    if ago is not None:
        change(resume.session, metadata={REPORTED_GONE: (timezone.now() - ago).isoformat()})
    session = resume.run(load(error(-32603, "Invalid session identifier")))
    assert (session.state, session.error_code, resume.token_outcome()) == ("ERROR", "token_rejected", "kept")
    assert session.error_message.endswith("Trying once more.")
    assert session.next_restart_at is not None
    assert session.receipts.get().kind == "failed"


def test_profile_can_add_patterns_for_a_lost_conversation(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "custom_acp")
    change(resume.session.agent_profile, gone_patterns=[r"thread \S+ vanished"])
    session = resume.run(load(error(-32603, "thread 7 vanished")))
    assert (session.error_code, resume.token_outcome()) == ("token_rejected", "aside")


SUCCESSES = {
    "loaded and proven": (
        "codex",
        load(chunk("user", LAST_REQUEST), chunk("agent", "Done."), result({})),
        "loaded",
        "replay",
    ),
    "never replays": ("claude_code", load(result({})), "loaded", "unproven"),
    "resumed": ("codex", agent(resume=True, session_resume=[result({})]), "resumed", "unproven"),
    "resumed on the second try": (
        "codex",
        agent(load=True, resume=True, session_load=[NOT_FOUND], session_resume=[result({})]),
        "resumed",
        "unproven",
    ),
}


@pytest.mark.parametrize("name", SUCCESSES)
def test_successful_load_writes_a_receipt_with_evidence(name: str, tmp_path: Path) -> None:
    kind, script, receipt_kind, verified = SUCCESSES[name]
    resume = Resume(tmp_path, kind)
    session = resume.run(script)
    receipt = session.receipts.get()
    assert (receipt.kind, receipt.verified, resume.token_outcome()) == (receipt_kind, verified, "kept")
    evidence = receipt.evidence
    assert evidence["fingerprint_before"] == evidence["fingerprint_after"]
    assert evidence["agent_pid"] > 0
    assert evidence["agent_started_at"]
    assert evidence["log_messages"] == 2
    assert set(evidence["timings_ms"]) == {"spawn", "initialize", "session"}
    assert evidence["injection"] is None
    assert (session.state, bool(session.launch_id)) == ("WAITING_FOR_INPUT", True)


OTHER = load(chunk("user", "paint the shed"), result({}))


def test_conversation_accepted_by_a_user_continues_unverified(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "codex")
    assert resume.run(OTHER).context_mismatch
    session = resume.run(OTHER, mode="accept_mismatch")
    receipt = session.receipts.first()
    assert receipt is not None
    assert (receipt.kind, receipt.verified, receipt.reason) == ("loaded", "none", "accept_mismatch")
    assert "last completed request" in receipt.evidence["accepted_by_user"]
    assert (session.state, session.context_mismatch, resume.token_outcome()) == ("WAITING_FOR_INPUT", False, "kept")


def test_fresh_start_keeps_the_old_token_until_it_succeeds(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "codex")
    resume.run(OTHER)
    failed = resume.run(agent(session_new=[error(-32603, "Oops")]), mode="fresh_start")
    assert (failed.receipts.first().kind, resume.token_outcome()) == ("failed", "kept")  # type: ignore[union-attr]
    session = resume.run(agent(session_new=[result({"sessionId": "a-new-conversation"})]), mode="fresh_start")
    execution = execution_of(session)
    assert execution is not None
    assert (execution.resume_token, execution.rejected_resume_token) == ("a-new-conversation", TOKEN)
    assert session.receipts.first().kind == "fresh"  # type: ignore[union-attr]
    assert not session.context_mismatch


def test_set_aside_conversation_can_be_resumed_when_it_is_back(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "codex")
    resume.run(load(error(-32002, "Resource not found")))
    assert resume.token_outcome() == "aside"
    resume.run(load(error(-32002, "Resource not found")), mode="resume")
    assert resume.token_outcome() == "aside"
    session = resume.run(load(chunk("user", LAST_REQUEST), result({})), mode="resume")
    execution = execution_of(session)
    assert execution is not None
    assert (execution.resume_token, execution.rejected_resume_token) == (TOKEN, "")
    assert [row.kind for row in session.receipts.all()] == ["loaded", "failed", "failed"]
