"""Write the review comments of an imported session: those that wait, and the newest of those that were sent."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

from django.utils import timezone

from sessions_app.models import ReviewComment, TaskSession
from sessions_app.portable.rows.batches import insert_rows
from sessions_app.portable.rows.parents import find_user
from sessions_app.portable.snapshot_values import SnapshotValues
from sessions_app.review.rules.comments import (
    MAX_EXCERPT,
    MAX_LINE_NUMBER,
    MAX_PATH,
    MAX_PENDING,
    MAX_RANGE,
    MAX_STORED,
    MAX_TEXT,
    Side,
)


def write_review_comments(session: TaskSession, snapshot: SnapshotValues) -> None:
    """Write the comments of a snapshot; one without a path, lines or a text is left out."""
    read = [_comment(session, values) for values in snapshot.rows("review_comments")[:MAX_STORED]]
    comments = {comment.id: comment for comment in _within_limit(filter(None, read))}
    for taken in ReviewComment.objects.filter(id__in=list(comments)).values_list("id", flat=True):
        comments[taken].id = uuid.uuid4()  # another session has it here
    rows = list(comments.values())
    insert_rows(rows, [row.created_at for row in rows])


def _within_limit(comments: Iterable[ReviewComment]) -> Iterator[ReviewComment]:
    """Yield the comments without those that wait beyond what one prompt can carry."""
    waiting = 0
    for comment in comments:
        waiting += not comment.sent_with
        if comment.sent_with or waiting <= MAX_PENDING:
            yield comment


def _comment(session: TaskSession, values: SnapshotValues) -> ReviewComment | None:
    path, text = values.text("path", MAX_PATH), values.text("text", MAX_TEXT)
    first, last = values.number("first_line"), values.number("last_line")
    is_range = 1 <= first <= last <= MAX_LINE_NUMBER and last - first < MAX_RANGE
    if not path or not text.strip() or not is_range:
        return None
    return ReviewComment(
        id=values.id("id") or uuid.uuid4(),
        session=session,
        author=find_user(values.text("author")),
        author_name=values.text("author_name", 150),
        path=path,
        side=values.one_of("side", set(Side), Side.NEW),
        first_line=first,
        last_line=last,
        excerpt=values.text("excerpt", MAX_EXCERPT),
        version=values.text("version", 64),
        text=text,
        sent_with=values.text("sent_with", 128),
        created_at=values.time("created_at") or timezone.now(),
    )
