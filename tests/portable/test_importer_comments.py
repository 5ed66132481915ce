"""An import restores review comments, within their limits, whatever the record says."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from sessions_app.models import ReviewComment
from tests.portable.records import delete_sessions, export, run_import
from tests.supervisor.rows import make_user, running_session

pytestmark = pytest.mark.django_db
ABOUT = {"path": "grüße b.py", "side": "old", "first_line": 3, "last_line": 4, "excerpt": "x\ny", "version": "v"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


def written() -> list[dict[str, Any]]:
    return [dict(row) for row in ReviewComment.objects.order_by("created_at", "id").values()]


def test_comments_that_wait_and_those_that_were_sent_are_restored(folder: Path) -> None:
    session, user = running_session(), make_user()
    for number, sent_with in enumerate(("m", "", "")):
        values = {**ABOUT, "text": f"Why {number}?", "sent_with": sent_with, "author_name": user.username}
        ReviewComment.objects.create(session=session, author=user, **values)
    before = written()
    export(session, folder)
    delete_sessions()
    ReviewComment.objects.all().delete()
    assert run_import(folder) == 0
    after = written()
    for row in (*before, *after):
        del row["updated_at"]
    assert after == before


def test_strange_comments_are_left_out_and_many_are_bounded(folder: Path) -> None:
    session = running_session()
    export(session, folder)
    delete_sessions()
    [path] = folder.glob(f"{session.id}.json")
    good = {**ABOUT, "text": "x" * 10_000}
    strange: list[Any] = [None, [], {}, {**good, "path": ""}, {**good, "text": " "}, {**good, "text": 7}]
    strange += [{**good, "first_line": 5}, {**good, "first_line": 0}, {**good, "last_line": 10**9}]
    same = str(uuid.uuid4())
    usable = [{**good, "id": same, "author": "nobody"}, {**good, "id": same}, {**good, "side": "left", "id": 7}]
    many = [{**good, "text": str(number)} for number in range(100)]
    path.write_text(json.dumps({**json.loads(path.read_text()), "review_comments": [*strange, *usable, *many]}))
    run_import(folder)
    rows = written()
    assert len(rows) == 49  # two of the first fifty have one id
    assert {row["author_id"] for row in rows} == {None}
    assert max(len(row["text"]) for row in rows) == 4000
    assert {row["side"] for row in rows} == {"old", "new"}
