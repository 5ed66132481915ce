"""Warnings of agentctl, HEAD, and what a snapshot lacks reach the log, the status, the page and the next prompt."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.machine.git.recovery_snapshots import IGNORED_FILES_NOTE
from executors_app.wire.protocol import JournalKind
from sessions_app.events import event_label
from sessions_app.models import TaskSession, session_transaction
from sessions_app.prompts.services import context_before, mark_carrier, mark_context_delivered
from sessions_app.sessions.services.status import session_status
from sessions_app.sessions.views.session_page import session_context
from sessions_app.workspace.services import workspace_notes
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, fresh, running_session

pytestmark = pytest.mark.django_db

WARNING = "session.warning"
TEXT = "no snapshot of the working tree could be taken"


@pytest.fixture
def session() -> TaskSession:
    return running_session()


def warn(session: TaskSession, text: Any = TEXT, level: str = "warning", **data: Any) -> TaskSession:
    journal = Journal("epoch-warnings")
    ingest(session, [journal.line(JournalKind.LOG, level=level, text=text, data=data)])
    return fresh(session)


def events(session: TaskSession) -> list[dict[str, Any]]:
    return list(session.events.filter(name=WARNING).values_list("payload", flat=True))


@pytest.mark.parametrize("level", ["warning", "error"])
def test_warning_is_in_the_log_the_status_and_the_timeline(session: TaskSession, level: str) -> None:
    journal = Journal()
    ingest(session, [journal.line(JournalKind.LOG, level=level, text=TEXT, data={"error": "disk full"})])
    assert events(session) == [{"level": level, "text": f"{TEXT}: disk full"}]
    [warning] = session_status(fresh(session))["warnings"]
    assert (warning["text"], warning["count"]) == (f"{TEXT}: disk full", 1)
    assert TEXT in event_label(WARNING, events(session)[0]).text


def test_line_that_cannot_be_read_is_not_taken_for_a_sentence_of_kandev(session: TaskSession) -> None:
    session = warn(session, '{"id": 3}', source="stdout", reason="an answer without a request", bytes=9)
    [warning] = session_status(session)["warnings"]
    assert warning["text"] == (
        'Output of the agent that Kandev does not understand (an answer without a request): {"id": 3}'
    )


@pytest.mark.parametrize("level", ["info", "debug", "", None, 7])
def test_other_levels_stay_in_the_journal(session: TaskSession, level: Any) -> None:
    journal = Journal()
    ingest(session, [journal.line(JournalKind.LOG, level=level, text=TEXT, data={})])
    assert not events(session)


def test_repeated_warning_is_counted_and_not_logged_again(session: TaskSession) -> None:
    journal = Journal()
    ingest(session, [journal.line(JournalKind.LOG, level="warning", text=TEXT, data={}) for _ in range(50)])
    assert len(events(session)) == 1
    assert session_status(fresh(session))["warnings"][0]["count"] == 50


def test_flood_of_warnings_is_bounded(session: TaskSession) -> None:
    journal = Journal()
    lines = [journal.line(JournalKind.LOG, level="warning", text=f"{at} {'x' * 9000}", data={}) for at in range(300)]
    ingest(session, lines)
    shown = session_status(fresh(session))["warnings"]
    assert len(shown) == 20
    assert shown[0]["text"].startswith("299 ")
    assert max(len(one["text"]) for one in shown) == 500
    assert len(events(session)) == 100


@pytest.mark.parametrize(
    ("text", "data"), [(None, {}), (["x"], {}), ("", {}), (TEXT, None), (TEXT, [1]), (TEXT, {"error": ["x"]})]
)
def test_malformed_warning_harms_nothing(session: TaskSession, text: Any, data: Any) -> None:
    journal = Journal()
    ingest(session, [journal.line(JournalKind.LOG, level="warning", text=text, data=data)])
    assert len(fresh(session).metadata.get("warnings", [])) <= 1


def test_invisible_characters_of_a_warning_are_shown(session: TaskSession) -> None:
    journal = Journal()
    ingest(session, [journal.line(JournalKind.LOG, level="warning", text="a\u202eb\nc\x1b[2J", data={})])
    text = session_status(fresh(session))["warnings"][0]["text"]
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "\n" not in text


def snapshot(session: TaskSession, **fields: Any) -> TaskSession:
    journal = Journal(f"epoch-{len(str(fields))}")
    line = journal.line(JournalKind.WORKSPACE_SNAPSHOT, commit="c" * 40, reason="turn_end", dirty=True, **fields)
    ingest(session, [line])
    return fresh(session)


LEFT_OUT = {"left_out": ["f.enc"], "left_out_reasons": ["git refuses it"], "left_out_count": 1}


def test_what_a_snapshot_lacks_is_shown_and_told_once(session: TaskSession) -> None:
    session = snapshot(session, branch="kandev/x", head="a" * 40, **LEFT_OUT)
    status = session_status(session)
    assert status["workspace"]["left_out"] == [{"path": "f.enc", "reason": "git refuses it"}]
    assert "f.enc (git refuses it)" in status["warnings"][0]["text"]
    payload = session.events.get(name="session.workspace.changed").payload
    assert payload["left_out"] == [{"path": "f.enc", "reason": "git refuses it"}]
    prompt = session.prompts.create(message_id="next", text="go on")
    assert "f.enc" in context_before(session, prompt)
    session = snapshot(session, branch="kandev/x", head="b" * 40, **LEFT_OUT)
    assert len(events(session)) == 1


@pytest.mark.parametrize(
    ("reported", "sentence"),
    [
        ({}, ""),
        ({"ignored_count": 0}, ""),
        ({"ignored_count": 1}, "1 file or directory that .gitignore names"),
        ({"ignored_count": 1234}, "1,234 files and directories that .gitignore names"),
        ({"ignored_count": "many"}, ""),
        ({"ignored_count": 10**30}, "1,000,000,000 files and directories that .gitignore names"),
    ],
)
def test_number_of_ignored_files_is_on_the_page(session: TaskSession, reported: dict[str, Any], sentence: str) -> None:
    session = snapshot(session, branch="kandev/x", head="a" * 40, left_out=[], left_out_reasons=[], **reported)
    assert session_context(session)["ignored_sentence"] == sentence


def test_notes_are_forgotten_once_their_prompt_is_delivered(session: TaskSession) -> None:
    session = warn(session, "The base branch main is 2 commits behind origin/main.", code="base_behind")
    prompt = session.prompts.create(message_id="next", text="go on")
    with session_transaction(session.id) as transaction:
        mark_carrier(transaction, prompt)
    session = snapshot(session, **LEFT_OUT)
    with session_transaction(session.id) as transaction:
        assert mark_context_delivered(transaction, "next")
    context = context_before(fresh(session), prompt)
    assert "behind" not in context
    assert "f.enc" in context


def test_warnings_about_the_agents_process_are_not_told_to_the_agent(session: TaskSession) -> None:
    session = warn(session, code="something")
    assert context_before(session, session.prompts.create(message_id="next", text="go on")) == ""


@pytest.mark.parametrize(
    ("branch", "head", "sentence"),
    [
        ("kandev/x", "a" * 40, ""),
        ("feature/y", "a" * 40, "HEAD is on feature/y at aaaaaaaaaaaa."),
        (None, "a" * 40, "HEAD is detached at aaaaaaaaaaaa."),
        ("orphan", None, "HEAD is on orphan, which has no commit yet."),
    ],
)
def test_page_says_where_head_is(session: TaskSession, branch: str | None, head: str | None, sentence: str) -> None:
    session = change(session, worktree_branch="kandev/x")
    session = snapshot(session, branch=branch, head=head)
    assert session_context(session)["head_sentence"] == sentence


def test_rebuilt_workspace_says_what_it_lacks_on_page_receipt_and_in_the_next_prompt(session: TaskSession) -> None:
    text = f"The worktree was rebuilt. {IGNORED_FILES_NOTE}"
    session = warn(session, text, code="workspace_rebuilt")
    assert session_context(session)["status"].warnings[0]["text"] == text
    assert text in context_before(session, session.prompts.create(message_id="next", text="go on"))
    reported = {"branch": "kandev/x", "head": "a" * 40, "rebuild_note": IGNORED_FILES_NOTE}
    evidence = workspace_notes.workspace_evidence(session, reported)
    assert evidence["workspace_restored"] == IGNORED_FILES_NOTE


@pytest.mark.parametrize(
    ("reported", "matches"),
    [
        ({"branch": "feature/y", "head": "a" * 40}, True),
        ({"branch": "kandev/x", "head": "a" * 40}, False),
        ({"branch": "feature/y", "head": "b" * 40}, False),
        (None, None),
        ("nonsense", None),
    ],
)
def test_receipt_compares_head_with_the_last_snapshot(session: TaskSession, reported: Any, matches: Any) -> None:
    session = snapshot(session, branch="feature/y", head="a" * 40)
    assert workspace_notes.workspace_evidence(session, reported).get("workspace_head_matches") is matches
