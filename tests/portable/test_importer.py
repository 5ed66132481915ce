"""Exported sessions are imported; damaged, foreign or hostile records are reported and affect no others."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from django.core.management.base import CommandError

from sessions_app.kernel.rules.states import DerivedStatus
from sessions_app.kernel.services.errors import AttachmentMissing
from sessions_app.models import Attachment, Prompt, SessionEvent, Task, TaskSession, session_transaction
from sessions_app.portable import reader
from sessions_app.portable.reader import RecordReader
from sessions_app.portable.rules.lines import BadLine
from sessions_app.prompts.rules.attachments import AttachedFile
from sessions_app.prompts.services import resend_prompt, store_files
from sessions_app.sessions.services.status import session_status
from tests.portable.records import (
    SEED_LOG,
    SEED_SNAPSHOT,
    delete_everything,
    delete_sessions,
    events_of,
    everything_of,
    export,
    run_import,
    session_with_history,
)
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, make_session, names, prompt_states, running_session, runs

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


def test_exported_session_is_imported_unchanged(folder: Path) -> None:
    session = session_with_history()
    events, everything = events_of(session), everything_of(session)
    export(session, folder)
    delete_sessions()

    assert run_import(folder) == 0

    back = TaskSession.objects.get(id=session.id)
    assert events_of(back) == events
    assert everything_of(back) == everything
    assert (back.desired_state, back.work_state) == ("stopped", "idle")
    assert back.epoch != session.epoch


def test_imported_task_is_not_said_to_be_in_its_column_since_the_import(folder: Path) -> None:
    export(make_session(), folder)
    delete_sessions()

    assert run_import(folder) == 0
    assert [(task.state, task.in_state_since) for task in Task.objects.all()] == [("TODO", None)]


def test_prompt_files_are_imported_and_damaged_ones_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = running_session("first")
    good, bad = (AttachedFile(name, "text/plain", name.encode()) for name in ("good", "bad"))
    with session_transaction(session.id) as transaction:
        described = store_files(transaction.session, [good, bad])
    session.prompts.update(attachments=described, state="queued")
    export(session, folder)
    digests = [each["sha256"] for each in described]
    files = folder / f"{session.id}.files"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (files, files / digests[0])] == [0o700, 0o600]
    (files / digests[1]).write_bytes(b"changed")
    (files / f".{digests[1]}.draft").write_bytes(b"killed while writing")
    delete_sessions()

    run_import(folder)

    back = Prompt.objects.get(session_id=session.id)
    assert (back.attachments, back.state) == (described, "held")
    assert [bytes(row.content) for row in Attachment.objects.all()] == [b"good"]
    assert f"{digests[1]}: its content does not match its name" in capsys.readouterr().out
    with pytest.raises(AttachmentMissing):
        resend_prompt(session.id, back.message_id, None)


def test_only_files_that_a_prompt_names_are_read(folder: Path, tmp_path: Path) -> None:
    session = running_session("first")
    named = AttachedFile("named", "text/plain", b"named")
    with session_transaction(session.id) as transaction:
        described = store_files(transaction.session, [named])
    session.prompts.update(attachments=described, state="queued")
    export(session, folder)
    files = folder / f"{session.id}.files"
    for number in range(50):
        other = AttachedFile("other", "text/plain", b"other %d" % number)
        (files / other.described()["sha256"]).write_bytes(other.content)
    delete_sessions()

    assert run_import(folder) == 0
    assert [bytes(row.content) for row in Attachment.objects.all()] == [b"named"]


def test_folder_of_files_that_is_a_link_is_not_followed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = running_session("first")
    with session_transaction(session.id) as transaction:
        described = store_files(transaction.session, [AttachedFile("named", "text/plain", b"named")])
    session.prompts.update(attachments=described, state="queued")
    export(session, folder)
    files = folder / f"{session.id}.files"
    files.rename(tmp_path / "elsewhere")
    files.symlink_to(tmp_path / "elsewhere")
    delete_sessions()

    run_import(folder)
    assert not Attachment.objects.exists()
    assert f"{session.id}.files: not a directory" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["{}", "[]", "0"])
def test_snapshot_with_too_many_values_is_refused_before_it_is_parsed(
    value: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reader, "MAX_VALUES", 1000)
    folder.mkdir()
    (folder / "a.json").write_text('{"id": "a", "rows": [' + ",".join([value] * 1000) + "]}")
    assert run_import(folder) == 1
    assert "a.json: too many values" in capsys.readouterr().out


def test_commas_and_brackets_in_a_text_are_no_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_VALUES", 1000)
    text = '[{,"\\' * 2000
    assert reader._json(json.dumps({"text": text, "more": [text]}).encode()) == {"text": text, "more": [text]}
    for torn in (json.dumps(text)[:-1], '"' + "[" * 2000, "[" * 2000 + '"'):
        with pytest.raises(BadLine):
            reader._json(torn.encode())


def test_problems_beyond_a_limit_are_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reader, "MAX_FINDINGS", 3)
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps({"id": "a", "title": "x"}))
    (folder / "a.messages.jsonl").write_text("damaged\n" * 40)
    assert run_import(folder) == 1
    output = capsys.readouterr().out
    assert output.count("a.messages.jsonl:") == 3
    assert "a: 37 more problems are not listed" in output
    assert "40 items left out" in output


def test_related_rows_are_found_by_name_or_created_inert(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = session_with_history()
    export(session, folder)
    delete_everything()

    assert run_import(folder) == 0

    back = TaskSession.objects.get(id=session.id)
    assert (back.task.team.name, back.agent_profile.name, back.executor.name) == ("team", "Demo", "local_standalone")
    assert back.executor.max_live == 0
    assert (back.agent_profile.command, back.agent_profile.env) == ([], {})
    assert not back.task.team.user_set.exists()
    assert back.task.repository is None
    output = capsys.readouterr().out
    for words in (
        "team “team” is new",
        "“/srv/repository” is not opened",
        "a limit of 0 agents",
        "without command",
    ):
        assert words in output


def test_second_import_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = session_with_history()
    export(session, folder)
    delete_sessions()
    run_import(folder)
    before = events_of(session), everything_of(TaskSession.objects.get(id=session.id))

    assert run_import(folder) == 0

    assert (events_of(session), everything_of(TaskSession.objects.get(id=session.id))) == before
    assert "1 already there" in capsys.readouterr().out


def test_dry_run_writes_nothing_and_prints_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = session_with_history()
    export(session, folder)
    delete_everything()

    assert run_import(folder, "--dry-run") == 0

    assert not TaskSession.objects.exists()
    assert not Task.objects.exists()
    assert "1 session: 1 imported (dry run: nothing was written)" in capsys.readouterr().out


def test_unfinished_work_is_held_interrupted_and_stopped(folder: Path) -> None:
    session = running_session("first")
    journal, first = Journal(), Prompt.objects.get(session=session)
    change(first, state="sending")
    ingest(
        session,
        [
            *journal.turn_begins(first.message_id, "first"),
            journal.tool("call-1", title="ls"),
            journal.requests_permission("p"),
        ],
    )
    Prompt.objects.create(session=session, message_id="waits", text="next")
    export(session, folder)
    events = events_of(session)
    delete_sessions()

    assert run_import(folder) == 0

    back = TaskSession.objects.get(id=session.id)
    assert events_of(back, len(events)) == events
    assert prompt_states(back) == {first.message_id: "held", "waits": "held"}
    assert [state for _, state in runs(back)] == ["interrupted"]
    assert (back.state, back.desired_state, back.work_state) == ("WAITING_FOR_INPUT", "stopped", "idle")
    assert back.messages.get(role="tool").payload["status"] == "interrupted"
    assert back.permissions.get().state == "expired"
    assert not back.wait_keys.unsettled().exists()
    assert back.intents.count() == 0
    assert names(back).count("session.run.interrupted") == 1
    assert session_status(back)["derived_status"] == DerivedStatus.INTERRUPTED_WAITING


def test_never_started_session_is_imported_with_its_prompt_held(folder: Path) -> None:
    session = make_session("begin")
    export(session, folder)
    delete_sessions()
    assert run_import(folder) == 0
    assert list(prompt_states(session).values()) == ["held"]
    assert TaskSession.objects.get(id=session.id).state == "CREATED"


def test_foreign_record_is_imported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    (folder / "sess_123.json").write_text(json.dumps(SEED_SNAPSHOT))
    (folder / "sess_123.messages.jsonl").write_text(SEED_LOG)
    (folder / "sess_123.tokens.json").write_text('{"rt_5f0": {"state": "active"}}')

    assert run_import(folder, "--team", "ours") == 0

    session = TaskSession.objects.get()
    assert (session.task.title, session.task.team.name) == ("Fix flaky test", "ours")
    assert session.agent_profile.name == "native gpt-5.3-codex"
    assert list(session.events.order_by("seq").values_list("seq", flat=True))[:4] == [145, 146, 147, 148]
    assert names(session)[:4] == [
        "session.message.added",
        "session.run.waiting",
        "session.run.interrupted",
        "session.status_derived",
    ]
    run = session.runs.get()
    assert (run.state, run.reason, run.wait_kind, run.waited) == ("interrupted", "process_exit", "tool_result", True)
    assert session_status(session)["derived_status"] == "interrupted_waiting"
    assert session.desired_state == "stopped"
    output = capsys.readouterr().out
    assert "lines 1 to 144 are missing" in output
    assert "“/repo” is not opened to team “ours”" in output
    assert run_import(folder) == 0
    assert TaskSession.objects.count() == 1


def test_corrupt_snapshot_is_replaced_by_the_log(folder: Path) -> None:
    session = session_with_history()
    export(session, folder)
    (folder / f"{session.id}.json").write_bytes(b'{"id": "' + b"\xff\x00")
    events, everything = events_of(session), everything_of(session)
    delete_sessions()

    assert run_import(folder) == 1

    back = TaskSession.objects.get(id=session.id)
    assert events_of(back) == events
    restored = everything_of(back)
    for what in ("messages", "conversation", "prompt states", "runs", "permissions"):
        assert restored[what] == everything[what]


def line(seq: int, text: str = "x", **more: object) -> str:
    whole = {"seq": seq, "ts": "2026-02-21T10:01:10Z", "kind": "message.agent", "content": text, **more}
    return json.dumps(whole) + "\n"


@pytest.mark.parametrize(
    ("log", "kept", "text"),
    [
        (line(1) + line(2) + '{"seq": 3, "ts"', [1, 2], ":3: incomplete"),
        (line(1) + "\x00" * 20 + "\n" + line(2), [1, 2], ":2: not JSON"),
        (line(1) + line(2) + line(2, "again") + line(3), [1, 2, 3], ":3: seq 2 is repeated"),
        (line(1) + line(2) + line(4), [1, 2, 4], ":3: line 3 is missing"),
        (line(1) + line(900_000) + line(2) + line(3), [1, 2, 3], ":2: seq 900000"),
        (line(1) + line(2**60) + line(2), [1, 2], ":2: no seq"),
        (line(1) + "[" * 5000 + "\n" + line(2), [1, 2], ":2: not JSON"),
        (line(1) + line(2, x={"a": "[" * 9}) + json.dumps({"seq": 3, "x": [[[]]]}) + "\n", [1, 2], ":3: no kind"),
        (line(1) + line(2).replace("x", "\\ud800\\u0000"), [1, 2], ""),
        (line(1) + line(2, payload=7), [1], ":2: is not valid: no message"),
        (line(1, message_id="m") + line(2, message_id="m"), [1], "exists already"),
        (line(1) + '{"seq":2,"ts":"2026-02-21T10:01:10Z","kind":"message.updated","message_id":"?"}\n', [1], ":2:"),
        (line(1) + line(2).replace("}", ', "n": NaN}'), [1], ":2: not JSON"),
        (line(1) + line(2).replace("}", ', "n": 1' + "0" * 5000 + "}"), [1], ":2: not JSON"),
        (line(1) + line(2, once="x" * 500), [1, 2], ""),
        (line(1) + line(2, name="n" * 65), [1], ":2: no kind"),
        (line(1) + '{"seq":2,"ts":"2026-02-21T10:01:10Z","kind":"prompt.flying","message_id":"m"}\n', [1], "no prompt"),
        (line(1) + '{"seq":2,"ts":"2026-02-21T10:01:10Z","kind":"some.news","a":[1]}\n', [1, 2], ""),
    ],
)
def test_damaged_log_loses_only_its_damaged_lines(
    folder: Path, capsys: pytest.CaptureFixture[str], log: str, kept: list[int], text: str
) -> None:
    folder.mkdir()
    (folder / "other.messages.jsonl").write_text(log)

    assert run_import(folder) == (1 if text else 0)

    session = TaskSession.objects.get()
    assert [seq for seq, name, *_ in events_of(session) if name != "session.journal_gap"] == kept
    assert ("session.journal_gap" in names(session)) == (kept != list(range(1, len(kept) + 1)))
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    "snapshot",
    [
        "[]",
        "null",
        '{"id": 7}',
        '{"id": "../../etc/passwd"}',
        '{"id": "' + "x" * 100_000 + '"}',
        "[" * 100_000,
        "",
    ],
)
def test_invalid_snapshot_is_reported_and_the_next_session_is_imported(folder: Path, snapshot: str) -> None:
    session = session_with_history()
    export(session, folder)
    delete_sessions()
    (folder / "0.json").write_text(snapshot)

    assert run_import(folder) == 1

    assert list(TaskSession.objects.values_list("id", flat=True)) == [session.id]


@pytest.mark.parametrize(
    "values",
    [
        {"state": "FLYING", "policy": 9, "worktree_path": "/etc", "agent_execution_id": "../.."},
        {"prompts": [{"message_id": "m" * 200}, {"message_id": ["m"]}, 7, {}], "runs": {"a": 1}, "receipts": "no"},
        {"prompts": [{"message_id": "m", "text": "t", "state": "sent", "kind": 3, "created_at": "never", "by": {}}]},
        {"task": {"id": "x", "title": "t" * 9000, "team": "t" * 500, "state": 3}, "executor": {"name": 3}},
        {"agent_profile": {"name": "n" * 999, "agent_type": "unheard_of", "command": ["rm"], "env": {"A": "b"}}},
        {"last_seq": -4, "owner": ["x"], "created_at": 12, "task": {"repository": {"path": "../../etc"}}},
    ],
)
def test_snapshot_with_any_values_is_imported_safely(folder: Path, values: dict[str, object]) -> None:
    folder.mkdir()
    (folder / "strange.json").write_text(json.dumps({"id": "strange", **values}))
    (folder / "strange.messages.jsonl").write_text(line(1))

    run_import(folder)

    session = TaskSession.objects.get()
    assert session.state == "WAITING_FOR_INPUT"
    assert (session.worktree_path, session.agent_profile.command, session.agent_profile.env) == ("", [], {})
    assert not Prompt.objects.exclude(state="held").exists()


def test_links_and_pipes_are_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "secret.json").write_text('{"id": "a", "title": "secret"}')
    (folder / "a.json").symlink_to(tmp_path / "secret.json")
    (folder / "b.messages.jsonl").symlink_to("/dev/zero")
    (folder / "c.json").mkdir()
    os.mkfifo(folder / "d.messages.jsonl")
    assert run_import(folder) == 1
    assert not TaskSession.objects.exists()


def test_session_of_another_teams_task_gets_a_new_task(folder: Path) -> None:
    theirs = session_with_history()
    folder.mkdir()
    task = {"id": str(theirs.task_id), "team": "strangers", "title": "mine"}
    (folder / "s.json").write_text(json.dumps({"id": "s", "task": task}))
    run_import(folder)
    mine = TaskSession.objects.exclude(id=theirs.id).get()
    assert mine.task_id != theirs.task_id
    assert mine.task.team.name == "strangers"


def test_unique_conflict_does_not_stop_the_import(folder: Path) -> None:
    session = session_with_history()
    export(session, folder)
    once = SessionEvent.objects.filter(session=session).first()
    assert once is not None
    SessionEvent.objects.filter(id=once.id).update(once="run.interrupted:x")
    (folder / "z.messages.jsonl").write_text(line(1, once="run.interrupted:x") + line(2, once="run.interrupted:y"))
    run_import(folder)
    other = TaskSession.objects.exclude(id=session.id).get()
    assert [once for *_, once in events_of(other)] == [None, "run.interrupted:y"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), TypeError("a damaged value")])
def test_session_that_fails_does_not_stop_the_import(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    session = session_with_history()
    export(session, folder)
    delete_sessions()
    (folder / "0.json").write_text("{}")
    read_snapshot = RecordReader.snapshot

    def snapshot(reader: RecordReader) -> dict[str, Any]:
        if reader.stem == "0":
            raise error
        return read_snapshot(reader)

    monkeypatch.setattr(RecordReader, "snapshot", snapshot)
    assert run_import(folder) == 1

    assert list(TaskSession.objects.values_list("id", flat=True)) == [session.id]


@pytest.mark.parametrize("place", ["nowhere", "a file"])
def test_unreadable_directory_prints_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(CommandError, match="cannot be read") as refused:
        run_import(tmp_path / place)
    assert refused.value.returncode == 2
    assert "\n" not in str(refused.value)


def test_whole_data_directory_is_accepted(folder: Path) -> None:
    session = session_with_history()
    export(session, folder)
    delete_sessions()
    assert run_import(folder.parent) == 0
    assert TaskSession.objects.filter(id=session.id).exists()


def test_empty_directory_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    assert run_import(folder) == 0
    assert "There are no sessions in this directory." in capsys.readouterr().out
