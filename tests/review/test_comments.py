"""Comments on the changes of a branch wait, are edited, and are sent once, as one prompt."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User

from sessions_app.kernel.services.errors import CommentsChanged, Conflict, Invalid, NotFound, QueueFull, TooManyComments
from sessions_app.models import Prompt, ReviewComment, TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.review import comments, viewed
from sessions_app.review.models import pending_comments
from sessions_app.review.rules import comments as rules
from tests.supervisor.rows import NO_LEASE, make_user, running_session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session() -> TaskSession:
    return running_session(execution=NO_LEASE)


def write(session: TaskSession, text: str = "Why?", by: User | None = None, **values: Any) -> ReviewComment:
    about: dict[str, Any] = {"path": "a.py", "side": "new", "first_line": 3, "last_line": 4, "excerpt": "one\ntwo"}
    return comments.add_comment(session, by or make_user(), text=text, **{**about, **values})[0]


def waiting(session: TaskSession) -> list[str]:
    return [row.text for row in pending_comments(session.review_comments.all())]


def test_comments_are_sent_as_one_prompt_once(session: TaskSession) -> None:
    write(session, "Second", first_line=9, last_line=9, excerpt="end", side="old")
    write(session, "First")
    prompt, is_new = comments.send_comments(session, "m", make_user())
    assert (is_new, prompt.state, prompt.by) == (True, "queued", make_user())
    assert waiting(session) == []
    text = prompt.text
    assert "1. a.py, lines 3 to 4:\n\n> one\n> two\n\nFirst" in text
    assert "2. a.py, line 9 before the change:\n\n> end\n\nSecond" in text
    again, is_new = comments.send_comments(session, "m", make_user())
    assert (again.pk, is_new) == (prompt.pk, False)
    with pytest.raises(Conflict, match="No comments wait"):
        comments.send_comments(session, "other", make_user())
    assert Prompt.objects.filter(session=session).count() == 1


def test_refused_prompt_leaves_all_comments_waiting(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    write(session)
    monkeypatch.setattr(prompts, "MAX_QUEUED", 0)
    with pytest.raises(QueueFull):
        comments.send_comments(session, "m", make_user())
    assert waiting(session) == ["Why?"]
    assert not Prompt.objects.filter(message_id="m").exists()


def test_only_the_comments_that_were_seen_are_sent(session: TaskSession) -> None:
    seen = write(session)
    write(session, "Written meanwhile")
    with pytest.raises(CommentsChanged):
        comments.send_comments(session, "m", make_user(), only=[seen.id])
    assert len(waiting(session)) == 2


def test_repeated_request_never_says_that_later_comments_were_sent(session: TaskSession) -> None:
    first = write(session)
    comments.send_comments(session, "m", make_user(), only=[first.id])
    later = write(session, "Written later")
    with pytest.raises(CommentsChanged):
        comments.send_comments(session, "m", make_user(), only=[later.id])
    assert comments.send_comments(session, "m", make_user(), only=[first.id])[1] is False
    assert waiting(session) == ["Written later"]


def test_comment_that_is_edited_while_the_prompt_is_composed_is_not_sent(
    session: TaskSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = write(session)
    compose = rules.compose_prompt

    def edit_meanwhile(rows: Any) -> str:
        comments.edit_comment(session, row.id, make_user(), "Better?")
        return compose(rows)

    monkeypatch.setattr(rules, "compose_prompt", edit_meanwhile)
    with pytest.raises(CommentsChanged):
        comments.send_comments(session, "m", make_user())
    assert waiting(session) == ["Better?"]


def test_comments_of_a_withdrawn_prompt_wait_again(session: TaskSession) -> None:
    row = write(session)
    comments.send_comments(session, "m", make_user())
    with pytest.raises(Conflict, match="was sent"):
        comments.delete_comment(session, row.id)
    prompts.withdraw_prompt(session.id, "m")
    [shown] = comments.list_comments(session)
    assert (shown.is_pending, shown.prompt_state) == (True, "withdrawn")  # type: ignore[attr-defined]
    prompt, _ = comments.send_comments(session, "again", make_user())
    assert "Why?" in prompt.text
    assert comments.send_comments(session, "m", make_user())[0].state == "withdrawn"


def test_only_the_author_edits_and_every_member_deletes(session: TaskSession) -> None:
    row = write(session)
    with pytest.raises(Conflict, match="author"):
        comments.edit_comment(session, row.id, make_user("bob"), "No")
    comments.edit_comment(session, row.id, make_user(), "Yes?")
    assert waiting(session) == ["Yes?"]
    comments.delete_comment(session, row.id)
    with pytest.raises(NotFound):
        comments.delete_comment(session, row.id)
    with pytest.raises(NotFound):
        comments.edit_comment(session, row.id, make_user(), "x")


def test_repeated_request_stores_one_comment(session: TaskSession) -> None:
    key = uuid.uuid4()
    first, repeated = write(session, id=key), write(session, "Other", id=key)
    assert (repeated.id, repeated.text) == (first.id, "Why?")
    with pytest.raises(Conflict, match="Another"):
        write(session, id=key, by=make_user("bob"))
    assert session.review_comments.count() == 1


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"text": " "}, "text"),
        ({"text": "x" * (rules.MAX_TEXT + 1)}, "text"),
        ({"text": "\ud800"}, "text"),
        ({"path": "\n" * rules.MAX_PATH}, "path"),
        ({"first_line": 5}, "last_line"),
        ({"first_line": 0}, "last_line"),
        ({"last_line": 3 + rules.MAX_RANGE}, "last_line"),
        ({"excerpt": "x" * (rules.MAX_EXCERPT + 1)}, "last_line"),
    ],
)
def test_comment_beyond_its_limits_is_refused(session: TaskSession, values: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        write(session, **values)
    assert refused.value.details == {"field": field}


def test_number_of_comments_is_bounded(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_PENDING", 2)
    monkeypatch.setattr(rules, "MAX_STORED", 3)
    write(session, "a")
    write(session, "b")
    with pytest.raises(TooManyComments):
        write(session, "c")
    comments.send_comments(session, "m", make_user())
    write(session, "c")
    write(session, "d")
    assert [row.text for row in session.review_comments.all()] == ["b", "c", "d"]


def test_all_comments_fit_into_one_prompt() -> None:
    longest = ReviewComment(
        path="p" * rules.MAX_PATH,
        side="old",
        first_line=rules.MAX_LINE_NUMBER - rules.MAX_RANGE,
        last_line=rules.MAX_LINE_NUMBER,
        excerpt="\n" * rules.MAX_RANGE + "`" * (rules.MAX_EXCERPT - rules.MAX_RANGE),
        text="x" * rules.MAX_TEXT,
    )
    assert len(rules.compose_prompt([longest] * rules.MAX_PENDING)) < prompts.TEXT_LIMIT


HUNKS = [{"old_start": 10, "new_start": 20, "lines": [" a", "-b", "+c", "+d", "\\ No newline", " e"]}]


@pytest.mark.parametrize(
    ("side", "first", "excerpt", "is_whole", "expected"),
    [
        ("new", 20, "a\nc\nd", True, "current"),
        ("old", 10, "a\nb\ne", True, "current"),
        ("new", 21, "c\nchanged\ne", True, "outdated"),
        ("new", 22, "d\ne\nf", True, "outdated"),
        ("new", 22, "d\ne\nf", False, "unknown"),
    ],
)
def test_lines_are_compared_with_what_is_there_now(
    side: str, first: int, excerpt: str, is_whole: bool, expected: str
) -> None:
    row = ReviewComment(side=side, first_line=first, last_line=first + 2, excerpt=excerpt)
    assert rules.compare_lines(row, rules.numbered_lines(HUNKS, side), is_whole=is_whole) == expected


def test_invisible_characters_are_compared_as_they_are_shown() -> None:
    now = {1: "a\r", 2: "\x1b[31m\u202eb"}
    shown = rules.readable_lines("a\r\n\x1b[31m\u202eb")
    assert rules.readable_lines(shown) == shown
    row = ReviewComment(side="new", first_line=1, last_line=2, excerpt=shown)
    assert rules.compare_lines(row, now, is_whole=True) == "current"


def test_line_that_was_cut_is_unknown() -> None:
    now = {1: "x" * 1000 + "…"}
    row = ReviewComment(side="new", first_line=1, last_line=1, excerpt=now[1])
    assert rules.compare_lines(row, now, is_whole=True) == "unknown"


def test_viewed_versions_are_those_of_one_user_and_bounded(
    session: TaskSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewed, "MAX_VIEWED", 2)
    ada, bob = make_user(), make_user("bob")
    for version in ("a", "b", "b", "c"):
        viewed.mark_viewed(session, ada, version, viewed=True)
    viewed.mark_viewed(session, bob, "z", viewed=True)
    assert viewed.viewed_versions(session, ada) == ["b", "c"]
    viewed.mark_viewed(session, ada, "b", viewed=False)
    assert (viewed.viewed_versions(session, ada), viewed.viewed_versions(session, bob)) == (["c"], ["z"])
