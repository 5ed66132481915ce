"""Sessions with a history, their record on disk, and comparisons of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group, User
from django.core.management import call_command

from executors_app.models import AgentProfile, Executor
from sessions_app.models import Prompt, Repository, Task, TaskSession
from sessions_app.portable.writer import RecordWriter
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import conversation, permission_states, prompt_states, running_session, runs

SEED_SNAPSHOT = {
    "id": "sess_123",
    "title": "Fix flaky test",
    "working_dir": "/repo",
    "provider": {"type": "native", "model": "gpt-5.3-codex"},
    "created_at": "2026-02-21T10:00:00Z",
    "updated_at": "2026-02-21T10:03:14Z",
    "last_seq": 148,
    "run": {
        "run_id": "run_9f5",
        "boot_id": "boot_20260221_1",
        "started_at": "2026-02-21T10:01:03Z",
        "ended_at": None,
        "wait": {
            "kind": "tool_result",
            "since_seq": 146,
            "resume_token_id": "rt_5f0",
            "deadline_at": "2026-02-21T10:11:03Z",
        },
    },
    "recovery": {"last_boot_seen": "boot_20260221_1", "interruption": None},
}
SEED_LOG = """\
{"seq":145,"ts":"2026-02-21T10:01:10Z","kind":"message.user","message_id":"msg_u1","content":"run tests"}
{"seq":146,"ts":"2026-02-21T10:01:25Z","kind":"run.waiting","run_id":"run_9f5","wait_kind":"tool_result",\
"resume_token_id":"rt_5f0"}
{"seq":147,"ts":"2026-02-21T10:02:02Z","kind":"run.interrupted","run_id":"run_9f5","reason":"process_exit"}
{"seq":148,"ts":"2026-02-21T10:03:14Z","kind":"status.derived","status":"interrupted_waiting"}
"""


def session_with_history() -> TaskSession:
    """Return a session with two finished turns that have everything a turn can have."""
    session = running_session("first")
    journal = Journal()
    first = Prompt.objects.get(session=session)
    Prompt.objects.create(session=session, message_id="second", text="second ☃", state="queued")
    for row in Prompt.objects.filter(session=session):
        Prompt.objects.filter(id=row.id).update(state="sending", journal_epoch=journal.epoch)
    ingest(session, [journal.snapshot("a" * 40, "asked"), *journal.turn_begins(first.message_id, "first")])
    ingest(session, journal.says("one ", "two\u2028", "drei 🎈\n"))
    ingest(session, [*journal.says(" and on"), journal.tool("call-1", title="ls", tool_kind="read")])
    ingest(
        session,
        [
            journal.requests_permission("ask-1"),
            journal.line("permission.resolved", permission_id="ask-1", option_id="yes"),
        ],
    )
    ingest(session, [journal.tool("call-1", status="completed", content=[{"type": "text", "text": "a\nb"}])])
    ingest(
        session, [journal.line("plan", entries=[{"content": "x", "status": "pending"}]), *journal.says("x" * 70_000)]
    )
    ingest(session, [journal.line("usage", usage={"input_tokens": 7, "cost": {"amount": 0.25}})])
    ingest(session, [journal.completes(first.message_id), journal.snapshot("b" * 40, "turn_end")])
    ingest(session, journal.turn_begins("second", "second ☃"))
    ingest(session, [*journal.says("done"), journal.completes("second")])
    return TaskSession.objects.get(id=session.id)


def export(session: TaskSession, folder: Path) -> None:
    """Write the complete record of a session."""
    folder.mkdir(mode=0o700, exist_ok=True)
    writer = RecordWriter(folder, "boot")
    while writer.export(session.id, final=True) is not None:
        pass


def log_of(folder: Path, session: TaskSession) -> list[dict[str, Any]]:
    """Return the parsed lines of a session's record."""
    return [json.loads(line) for line in (folder / f"{session.id}.messages.jsonl").read_text().split("\n")[:-1]]


def events_of(session: TaskSession, upto: int = 1 << 60) -> list[tuple[Any, ...]]:
    """Return the session's log from the database, up to ``upto``."""
    rows = session.events.filter(seq__lte=upto).order_by("seq")
    return list(rows.values_list("seq", "name", "payload", "at", "once"))


def everything_of(session: TaskSession) -> dict[str, Any]:
    """Return everything that a record must contain."""
    messages = session.messages.order_by("seq").values_list("id", "seq", "updated_seq", "role", "key", "created_at")
    prompts = session.prompts.order_by("id").values_list("message_id", "text", "kind", "by__username", "created_at")
    run_fields = (
        *("id", "state", "wait_kind", "wait_id", "waited", "reason", "since_seq", "started_at", "ended_at"),
        *("origin", "prompt__message_id", "first_seq", "last_seq", "stop_reason", "usage"),
        *("request_digest", "answer_digest", "snapshot_before", "snapshot_after"),
    )
    token_fields = ("id", "wait_kind", "wait_id", "secret_hash", "consumed_at", "created_at")
    task = session.task
    return {
        "messages": list(messages),
        "conversation": conversation(session),
        "prompts": list(prompts),
        "prompt states": prompt_states(session),
        "runs": runs(session),
        "run rows": list(session.runs.order_by("started_at").values_list(*run_fields)),
        "permissions": permission_states(session),
        "receipts": list(session.receipts.order_by("created_at").values_list("id", "kind", "verified", "evidence")),
        "tokens": list(session.wait_keys.order_by("created_at").values_list(*token_fields)),
        "session": (session.state, session.policy, session.created_at, session.agent_execution_id, session.last_seq),
        "task": (task.id, task.title, task.team.name, task.repository_id, task.state, task.created_at),
    }


def delete_sessions() -> None:
    """Delete every session and task; teams, profiles and executors stay."""
    TaskSession.objects.all().delete()
    Task.objects.all().delete()


def delete_everything() -> None:
    """Delete all rows, as in a new database."""
    delete_sessions()
    for model in (Repository, AgentProfile, Executor, User, Group):
        model._default_manager.all().delete()


def run_import(folder: Path, *flags: str) -> int:
    """Run ``import_sessions``; return its exit status."""
    try:
        call_command("import_sessions", str(folder), *flags)
    except SystemExit as ended:
        return int(str(ended.code))
    return 0
