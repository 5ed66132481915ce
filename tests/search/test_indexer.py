"""The index follows the log: what is said is found afterwards, without secrets, and until its session is deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.utils import timezone

from executors_app.models import AgentProfile
from sessions_app.confined.client import Outcome, PoolUnavailable
from sessions_app.models import Message, SearchCursor, SearchDocument, Task, TaskSession
from sessions_app.search import indexer as indexing
from sessions_app.search import models as index_tables
from sessions_app.search.indexer import Indexer
from sessions_app.search.rules.documents import TEXT_LIMIT
from sessions_app.search.services import SearchFilter, index_state, search
from tests.api.world import SECRET, World
from tests.search.conversations import change, index_all, say

pytestmark = pytest.mark.django_db
GHOST = "ghp_0123456789abcdefABCDEF0123456789abcd"


def found(user: User, text: str, **where: Any) -> list[str]:
    """Return the texts that a user finds, newest first."""
    return [result.document.text for result in search(user, text, SearchFilter(**where)).results]


def test_conversation_and_task_are_found(world: World) -> None:
    say(world.session, "user", "Paint the fence green")
    say(world.session, "agent", "The fence is painted\nin green")
    say(world.session, "tool", "", payload={"title": "Run tests", "raw_input": {"command": "make green"}})
    say(
        world.session,
        "tool",
        "",
        payload={"title": "Build", "raw_input": {"cmd": ["sh", "-c", "make all | tee green"]}},
    )
    say(world.session, "thought", "green thoughts")
    say(world.session, "tool", "", payload={"title": 5, "raw_input": "green", "raw_output": "green"})
    index_all()
    assert found(world.member, "green") == [
        "Build $ make all | tee green",
        "Run tests $ make green",
        "The fence is painted in green",
        "Paint the fence green",
    ]
    assert found(world.member, "mend") == [world.task.title]
    assert found(world.member, '"fence green"') == ["Paint the fence green"]
    assert found(world.member, "fence paint") == ["The fence is painted in green", "Paint the fence green"]


def test_growing_text_is_indexed_when_it_is_complete(world: World) -> None:
    message = say(world.session, "agent", "The first half", complete=False)
    index_all()
    assert found(world.member, "half") == []
    assert index_state(world.member).behind == 0
    change(message, " and the second", complete=True)
    assert index_state(world.member).behind == 1
    index_all()
    assert found(world.member, "half second") == ["The first half and the second"]


def test_changed_message_replaces_its_document(world: World) -> None:
    message = say(world.session, "tool", "", payload={"title": "Read before"}, complete=False)
    index_all()
    change(message, payload={"title": "Read after"}, complete=True)
    index_all()
    assert (found(world.member, "before"), found(world.member, "after")) == ([], ["Read after"])


def test_unchanged_text_is_not_written_again(world: World) -> None:
    message = say(world.session, "tool", "", payload={"title": "Run"}, complete=False)
    index_all()
    document = SearchDocument.objects.get(message=message)
    change(message, payload={"title": "Run", "raw_output": "much"}, complete=True)
    index_all()
    assert SearchDocument.objects.get(message=message).id == document.id


def test_changed_task_is_found_by_its_new_title(world: World) -> None:
    index_all()
    task = Task.objects.get(id=world.task.id)
    task.title, task.description = "Another title", "with a zebra"
    task.save()
    index_all()
    assert (found(world.member, "mend"), found(world.member, "zebra")) == ([], ["Another title with a zebra"])


def test_secrets_are_not_in_the_index(world: World) -> None:
    say(world.session, "agent", f"the key {SECRET} and {GHOST} in it")
    say(world.session, "tool", "", payload={"title": "Call", "raw_input": {"command": f"curl -H {SECRET}"}})
    Task.objects.filter(id=world.task.id).update(description=f"use {GHOST}")
    index_all()
    texts = list(SearchDocument.objects.values_list("text", flat=True))
    assert len(texts) == 3
    assert not any(SECRET in text or GHOST in text for text in texts)
    assert found(world.member, SECRET) == found(world.member, GHOST) == []


def test_new_secret_is_removed_from_what_is_indexed(world: World) -> None:
    say(world.session, "agent", "the word correct-horse-battery is here")
    index_all()
    assert found(world.member, "correct-horse-battery")
    profile = AgentProfile.objects.get(pk=world.profile.pk)
    profile.env = {"API_KEY": "correct-horse-battery"}
    profile.save()
    index_all()
    assert found(world.member, "correct-horse-battery") == []
    assert len(found(world.member, "the word")) == 1


def test_secret_at_the_limit_is_not_cut_in_half(world: World) -> None:
    filler = "word " * (TEXT_LIMIT // 5)
    say(world.session, "agent", f"{filler[: TEXT_LIMIT - 20]}{GHOST} behind it zebra")
    index_all()
    [text] = SearchDocument.objects.exclude(message=None).values_list("text", flat=True)
    assert "ghp_" not in text
    assert found(world.member, "zebra") == []


def test_deleted_session_leaves_nothing_in_the_index(world: World) -> None:
    say(world.session, "agent", "zebra crossing")
    index_all()
    assert found(world.member, "zebra")
    TaskSession.objects.get(id=world.session.id).delete()
    assert not SearchDocument.objects.exclude(kind="task").exists()
    assert not SearchCursor.objects.exists()
    assert words_in_the_index("zebra") == 0


def test_document_without_words_in_the_index_can_be_deleted(world: World) -> None:
    SearchDocument.objects.create(kind="task", task=world.task, at=world.task.created_at, text="zebra")
    SearchDocument.objects.all().delete()
    assert words_in_the_index("zebra") == 0
    index_all()
    assert found(world.member, "mend") == [world.task.title]


def words_in_the_index(word: str) -> int:
    """Return how many documents the database's own index has for a word."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT count(*) FROM search_documents WHERE vector @@ %s::tsquery", [word])
        else:
            cursor.execute("SELECT count(*) FROM search_index WHERE search_index MATCH %s", [word])
        (count,) = cursor.fetchone()
    return int(count)


def test_session_that_an_earlier_release_has_deleted_is_not_found(world: World) -> None:
    say(world.session, "agent", "zebra crossing")
    index_all()
    ids = list(Message.objects.filter(session=world.session).values_list("id", flat=True))
    SearchDocument.objects.filter(message__in=ids).update(session="00000000-0000-4000-8000-000000000000")
    SearchCursor.objects.update(session="00000000-0000-4000-8000-000000000000")
    assert found(world.member, "zebra") == []
    Indexer().forget_outdated()
    assert words_in_the_index("zebra") == 0


def test_pass_reads_and_writes_a_bounded_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "MESSAGES_PER_PASS", 2)
    for number in range(5):
        say(world.session, "agent", f"answer {number}")
    indexer = Indexer()
    counts = []
    for _ in range(3):
        indexer.index_sessions()
        counts.append(SearchDocument.objects.count())
    assert counts == [2, 4, 5]


def test_oldest_messages_of_a_long_session_are_left_out_and_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_tables, "MAX_DOCUMENTS", 3)
    for number in range(5):
        say(world.session, "agent", f"answer number{number}")
    index_all()
    assert len(found(world.member, "answer")) == 3
    assert found(world.member, "number0") == []
    assert index_state(world.member).left_out == 2


def test_progress_of_another_process_is_not_overwritten(world: World) -> None:
    say(world.session, "agent", "zebra")
    session = TaskSession.objects.select_related("task", "agent_profile").get(id=world.session.id)
    progress, texts = indexing._read_session(session, indexing._Budget())
    index_all()
    indexing._prepare(texts)
    assert index_tables.write_progress([progress]) == 0
    assert found(world.member, "zebra") == ["zebra"]


def test_hostile_texts_are_indexed_within_limits(world: World) -> None:
    say(world.session, "agent", "a" * 60_000)
    say(world.session, "agent", "a\x01\x02b \u202e " + "zebra\u0301 " * 20_000)
    say(world.session, "tool", "", payload={"title": ["x"], "raw_input": {"command": ["ls", {"a": "zebra"}]}})
    index_all()
    assert index_state(world.member).behind == 0
    assert len(found(world.member, "zebra")) == 2
    lengths = [len(text) for text in SearchDocument.objects.values_list("text", flat=True)]
    assert max(lengths) <= TEXT_LIMIT


def fail_on(monkeypatch: pytest.MonkeyPatch, word: str, error: Exception) -> None:
    """Make the search for secrets raise where a text contains a word; repeated attempts follow at once."""
    monkeypatch.setattr(indexing, "RETRY_AFTER", 0.0)
    run = indexing._run

    def run_or_raise(team_id: int, batch: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        if any(word in arguments["text"] for arguments in batch):
            raise error
        return run(team_id, batch)

    monkeypatch.setattr(indexing, "_run", run_or_raise)


def test_text_that_cannot_be_indexed_is_left_out_and_blocks_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_on(monkeypatch, "poison", RuntimeError("not expected"))
    other = TaskSession.objects.create(task=world.task, agent_profile=world.profile, executor=world.session.executor)
    say(world.session, "agent", "zebra before")
    poison = say(world.session, "agent", "poison zebra")
    say(world.session, "agent", "zebra behind")
    say(other, "agent", "zebra elsewhere")
    indexer = Indexer()
    indexer.index_sessions()
    assert found(world.member, "zebra") == ["zebra elsewhere"]
    for _ in range(indexing.MAX_ATTEMPTS + 3):
        indexer.index_sessions()
    assert set(found(world.member, "zebra")) == {"zebra elsewhere", "zebra behind", "zebra before"}
    state = index_state(world.member)
    assert (state.behind, state.left_out) == (0, 1)
    assert f"its message {poison.seq} is left out" in caplog.text
    assert not indexer._sessions.has_failed(world.session.id)


def test_task_that_cannot_be_indexed_is_left_out_and_blocks_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_on(monkeypatch, "poison", RuntimeError("not expected"))
    task = Task.objects.create(title="poison zebra", team=world.team, created_by=world.member)
    indexer = Indexer()
    for _ in range(indexing.MAX_ATTEMPTS):
        indexer.index_tasks()
        assert found(world.member, "mend") == [world.task.title]
    assert f"task {task.id} is left out" in caplog.text
    assert not indexing._changed_tasks().exists()
    Task.objects.filter(id=task.id).update(title="zebra", updated_at=timezone.now() + timedelta(seconds=1))
    index_all()
    assert found(world.member, "zebra") == ["zebra"]


def test_no_text_is_left_out_while_the_machine_is_short(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on(monkeypatch, "zebra", PoolUnavailable("the process does not answer"))
    say(world.session, "agent", "a horse")
    say(world.session, "agent", "a zebra")
    indexer = Indexer()
    for _ in range(3 * indexing.MAX_ATTEMPTS):
        indexer.index_sessions()
    assert found(world.member, "horse") == ["a horse"]
    state = index_state(world.member)
    assert (state.behind, state.left_out) == (1, 0)


def test_pass_waits_for_no_second_process_that_does_not_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on(monkeypatch, "zebra", PoolUnavailable("the process does not answer"))
    monkeypatch.setattr(indexing, "ALONE_SECONDS", -1.0)
    other = TaskSession.objects.create(task=world.task, agent_profile=world.profile, executor=world.session.executor)
    for session in (world.session, other):
        say(session, "agent", "a zebra")
    for number in range(2):
        Task.objects.create(title=f"zebra {number}", team=world.team, created_by=world.member)
    indexer = Indexer()
    assert indexer.index_sessions()
    assert len(indexer._sessions._in_a_row) == 1
    while not indexer._tasks._in_a_row:
        assert indexer.index_tasks()
    assert len(indexer._tasks._in_a_row) == 1


def test_unavailable_database_is_reported_and_blames_no_session(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on(monkeypatch, "zebra", OperationalError("database is locked"))
    say(world.session, "agent", "a zebra")
    indexer = Indexer()
    with pytest.raises(OperationalError):
        indexer.index_sessions()
    assert not indexer._sessions.has_failed(world.session.id)
