"""The index can be lost: the command builds it again, and the supervisor's job fills it by itself."""

from __future__ import annotations

from io import StringIO
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection

from sessions_app.models import SearchCursor, SearchDocument
from sessions_app.search import backends, jobs
from sessions_app.search.jobs import SearchIndexJob
from sessions_app.search.services import SearchFilter, index_state, search
from sessions_app.supervisor.change_counter import ChangeCounter
from tests.api.world import World
from tests.search.conversations import index_all, say


@pytest.mark.django_db
def test_command_builds_a_lost_index_again(world: World) -> None:
    say(world.session, "agent", "zebra")
    index_all()
    backends.drop_index(connection)
    assert not backends.has_index()
    out = StringIO()
    call_command("rebuild_search", stdout=out)
    assert out.getvalue() == "texts in the index: 2\n"
    assert search(world.member, "zebra", SearchFilter()).count == 1
    assert index_state(world.member).behind == 0


@pytest.mark.django_db
def test_command_removes_what_is_damaged(world: World) -> None:
    say(world.session, "agent", "zebra")
    index_all()
    SearchDocument.objects.exclude(message=None).update(text="giraffe")
    SearchCursor.objects.update(seq=10**9)
    call_command("rebuild_search", stdout=StringIO())
    assert search(world.member, "zebra", SearchFilter()).count == 1
    assert search(world.member, "giraffe", SearchFilter()).count == 0


@pytest.mark.django_db(transaction=True)
async def test_job_fills_the_index_and_rests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await sync_to_async(say)(world.session, "agent", "zebra")
    rests: list[int] = []

    async def note_rest(count: int, *_: float) -> None:
        rests.append(count)

    async def skip(_: float) -> None:
        return None

    counter: Any = ChangeCounter()
    monkeypatch.setattr(counter, "rest", note_rest)
    monkeypatch.setattr(jobs.asyncio, "sleep", skip)  # type: ignore[attr-defined]
    job = SearchIndexJob(Mock(registry=Mock(changes=counter)))
    try:
        await job.run_step()
        assert rests == [counter.count]
        assert (await sync_to_async(search)(world.member, "zebra", SearchFilter())).count == 1
        assert (await sync_to_async(search)(world.member, "mend", SearchFilter())).count == 1
        documents = await SearchDocument.objects.acount()
        await job.run_step()
        assert await SearchDocument.objects.acount() == documents
    finally:
        await job.finish()
