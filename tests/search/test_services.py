"""Who finds what: filters, pages, teams, and the limits of a search."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.kernel.services.errors import Conflict, Invalid
from sessions_app.models import Prompt, TaskSession
from sessions_app.search import backends, services, time_limit
from sessions_app.search.services import Order, SearchFilter, index_state, search
from tests.api.world import World
from tests.search.conversations import index_all, say

pytestmark = pytest.mark.django_db


def test_other_teams_find_nothing(world: World) -> None:
    say(world.session, "agent", "zebra")
    index_all()
    assert search(world.member, "zebra", SearchFilter()).count == 1
    for where in (SearchFilter(), SearchFilter(session=world.session.id), SearchFilter(task=world.task.id)):
        page = search(world.stranger, "zebra", where)
        assert (page.count, page.results, page.index.behind) == (0, [], 0)


def test_filters_limit_what_is_found(world: World) -> None:
    Prompt.objects.create(session=world.session, message_id="p1", text="zebra", by=world.member)
    say(world.session, "user", "zebra prompt", key="p1")
    say(world.session, "agent", "zebra answer")
    task = create_task(world.member, {"title": "zebra task", "team": world.team, "repository": world.repository})
    other = create_session(world.member, task, world.profile, world.executor)
    say(other, "tool", "", payload={"title": "zebra tool"})
    index_all()

    def texts(**where: object) -> set[str]:
        page = search(world.member, "zebra", SearchFilter(**where))  # type: ignore[arg-type]
        return {result.document.text.removeprefix("zebra ") for result in page.results}

    assert texts() == {"prompt", "answer", "task", "tool"}
    assert texts(session=world.session.id) == {"prompt", "answer"}
    assert texts(task=task.id) == {"task", "tool"}
    assert texts(state="DONE") == set()
    assert texts(state=world.task.state) == {"prompt", "answer", "task", "tool"}
    assert texts(who="agent") == {"answer"}
    assert texts(who="tool") == {"tool"}
    assert texts(who="@member") == {"prompt", "task"}
    assert texts(who="@nobody") == set()
    with pytest.raises(Invalid):
        texts(who="everybody")


def test_result_says_who_and_links_to_the_message(world: World) -> None:
    message = say(world.session, "agent", "zebra")
    index_all()
    [result] = search(world.member, "zebra", SearchFilter()).results
    assert result.author == "Agent"
    assert result.url == f"/tasks/{world.task.id}/sessions/{world.session.id}/?at={message.seq}#m-{message.id}"


def test_best_match_comes_first_if_wanted(world: World) -> None:
    say(world.session, "agent", "zebra zebra zebra")
    say(world.session, "agent", "a long text in which a zebra is only one of many words that are there")
    index_all()
    newest = search(world.member, "zebra", SearchFilter()).results
    best = search(world.member, "zebra", SearchFilter(), Order.BEST).results
    assert [result.document.id for result in best] == [result.document.id for result in reversed(newest)]


def test_results_are_paged_and_counted_up_to_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_RESULTS", 5)
    for number in range(7):
        say(world.session, "agent", f"zebra {number}")
    index_all()
    pages = [search(world.member, "zebra", SearchFilter(), number=number, size=2) for number in (1, 2, 3, 4)]
    assert [[result.document.text[-1] for result in page.results] for page in pages] == [
        ["6", "5"], ["4", "3"], ["2"], [],
    ]  # fmt: skip
    assert [(page.count, page.is_complete, page.next_page) for page in pages[:3]] == [
        (5, False, 2), (5, False, 3), (5, False, None),
    ]  # fmt: skip


def test_search_that_takes_too_long_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    say(world.session, "agent", "zebra")
    index_all()
    slow = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1000000000) SELECT max(x) FROM n"
    with pytest.raises(time_limit.SearchTooLong), time_limit.limited_search(0.2), connection.cursor() as cursor:
        cursor.execute(slow)

    def give_up(*_: object, **__: object) -> None:
        raise time_limit.SearchTooLong

    monkeypatch.setattr(services, "limited_search", give_up)
    with pytest.raises(Invalid, match="takes too long"):
        search(world.member, "zebra", SearchFilter())


def test_lost_index_is_reported_with_the_command(world: World) -> None:
    backends.drop_index(connection)
    with pytest.raises(Conflict, match="rebuild_search"):
        search(world.member, "zebra", SearchFilter())


def test_index_says_how_far_it_is(world: World) -> None:
    say(world.session, "agent", "zebra")
    state = index_state(world.member)
    assert (state.behind, state.indexed_up_to) == (1, None)
    index_all()
    assert index_state(world.member).sentence == ""
    say(world.session, "agent", "another zebra")
    state = index_state(world.member)
    assert state.behind == 1
    assert state.indexed_up_to == TaskSession.objects.get(id=world.session.id).search_cursor.indexed_at
    assert state.sentence == "1 session has newer text that is not searched yet."
    assert index_state(world.stranger).behind == 0


def test_number_of_queries_does_not_depend_on_the_results(world: World) -> None:
    counts = []
    for number in (1, 9):
        for _ in range(number):
            say(world.session, "agent", "zebra")
        index_all()
        with CaptureQueriesContext(
            connection,
        ) as queries:
            for result in search(world.member, "zebra", SearchFilter()).results:
                assert result.url and result.author and result.document.task.title
        counts.append(len(queries))
    assert counts[0] == counts[1]
