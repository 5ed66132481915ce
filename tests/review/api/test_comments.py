"""Comments and viewed versions over the API, with a real agentctl."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from executors_app.models import ExecutorRunning
from sessions_app.models import ReviewComment, Task
from sessions_app.review.rules.comments import MAX_PENDING
from tests.api.world import client_of
from tests.executors.repositories import commit, run_git
from tests.workspace.served import Served

pytestmark = pytest.mark.any_database


@pytest.fixture
def branch(served: Served) -> Served:
    """Return a session whose branch has a commit and an uncommitted change."""
    Task.objects.update(base_branch="main")
    run_git(served.workspace, "branch", "--move", "main")
    run_git(served.workspace, "switch", "--quiet", "--create", "work")
    commit(served.workspace, "committed", "one\ntwo\n")
    (served.workspace / "README").write_text("changed\n")
    return served


def post(api: APIClient, branch: Served, tail: str = "", **body: Any) -> Any:
    return api.post(branch.url(f"review/comments/{tail}"), body, format="json")


def listed(api: APIClient, branch: Served) -> list[dict[str, Any]]:
    answer = api.get(branch.url("review/comments/"))
    assert answer.status_code == 200
    return list(answer.json()["comments"])


def test_comment_is_written_compared_edited_and_sent(branch: Served, api: APIClient) -> None:
    made = post(api, branch, path="committed", first_line=1, last_line=2, text="Why?")
    assert made.status_code == 201
    assert (made.json()["excerpt"], made.json()["own"], made.json()["pending"]) == ("one\ntwo", True, True)
    old = post(api, branch, path="README", side="old", first_line=1, text="It was good.").json()
    assert (old["excerpt"], len(old["version"])) == ("hello", 40)
    assert [comment["lines"] for comment in listed(api, branch)] == ["current", "current"]

    (branch.workspace / "committed").write_text("one\n2\n")
    (branch.workspace / "README").write_text("changed again\n")
    assert [comment["lines"] for comment in listed(api, branch)] == ["outdated", "current"]
    edited = api.patch(branch.url(f"review/comments/{old['id']}/"), {"text": "Undo this."}, format="json")
    assert (edited.status_code, edited.json()["text"]) == (200, "Undo this.")

    assert post(api, branch, "send/", message_id="m", comments=[old["id"]]).json()["code"] == "comments_changed"
    sent = post(api, branch, "send/", message_id="m")
    assert (sent.status_code, sent.json()["state"]) == (202, "queued")
    assert post(api, branch, "send/", message_id="m").status_code == 200
    [first, second] = listed(api, branch)
    assert (first["pending"], first["message_id"], second["delivery"]) == (False, "m", "Its prompt is in the queue.")
    assert api.delete(branch.url(f"review/comments/{old['id']}/")).status_code == 409


def test_comments_of_a_withdrawn_prompt_are_sent_with_as_many_others(branch: Served, api: APIClient) -> None:
    def write_many() -> list[str]:
        about = {"session": branch.world.session, "author": branch.world.member, "path": "README", "text": "x"}
        rows = [ReviewComment(**about, first_line=1, last_line=1, excerpt="x") for _ in range(MAX_PENDING)]
        return [str(row.id) for row in ReviewComment.objects.bulk_create(rows)]

    before = write_many()
    assert post(api, branch, "send/", message_id="m", comments=before).status_code == 202
    after = write_many()
    assert api.delete(branch.url("prompts/m/")).status_code == 204
    assert post(api, branch, "send/", message_id="n", comments=[*before, *after]).status_code == 202


def test_file_that_no_longer_differs_is_compared_as_it_is(branch: Served, api: APIClient) -> None:
    post(api, branch, path="README", first_line=1, text="x")
    post(api, branch, path="README", side="old", first_line=1, text="x")
    post(api, branch, path="committed", first_line=2, text="x")
    (branch.workspace / "README").write_text("hello\n")
    run_git(branch.workspace, "rm", "--quiet", "--force", "committed")
    run_git(branch.workspace, "commit", "--quiet", "-m", "Away", "committed")
    assert [comment["lines"] for comment in listed(api, branch)] == ["outdated", "current", "outdated"]


def test_closed_workspace_leaves_lines_unknown(branch: Served, api: APIClient) -> None:
    assert post(api, branch, path="README", first_line=1, text="x").status_code == 201
    ExecutorRunning.objects.update(status="stopped")
    assert [comment["lines"] for comment in listed(api, branch)] == ["unknown"]
    assert post(api, branch, path="README", first_line=1, text="x").status_code == 503
    assert post(api, branch, path="README", first_line=1, excerpt="seen", text="x").status_code == 201


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "path"),
        ({"path": ""}, "path"),
        ({"path": "../up"}, None),
        ({"path": ".git/config"}, None),
        ({"first_line": 0}, "first_line"),
        ({"first_line": 3, "last_line": 2}, None),
        ({"first_line": 99}, None),
        ({"side": "left"}, "side"),
        ({"text": ""}, "text"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_invalid_comment_is_refused(branch: Served, api: APIClient, body: dict[str, Any], field: str | None) -> None:
    whole = {"path": "README", "first_line": 1, "text": "x", **body} if body else {"first_line": 1, "text": "x"}
    answer = post(api, branch, **whole)
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
    if field:
        assert list(answer.json()["details"]) == [field]


def test_strangers_find_nothing_and_viewers_only_read(branch: Served, api: APIClient) -> None:
    made = post(api, branch, path="README", first_line=1, text="x").json()
    stranger = client_of(branch.world.stranger)
    for tail in ("", f"{made['id']}/", "send/"):
        for method in ("get", "post", "patch", "delete"):
            assert getattr(stranger, method)(branch.url(f"review/comments/{tail}")).status_code in (404, 405)
    assert stranger.get(branch.url("review/viewed/")).status_code == 404


def test_viewed_versions_are_ones_own(branch: Served, api: APIClient) -> None:
    url = branch.url("review/viewed/")
    for version in ("v1", "v1", "v2"):
        assert api.post(url, {"version": version, "viewed": True}, format="json").status_code == 204
    assert api.post(url, {"version": "v1", "viewed": False}, format="json").status_code == 204
    assert api.get(url).json() == {"versions": ["v2"]}


def test_number_of_queries_does_not_grow_with_the_comments(branch: Served, api: APIClient) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            listed(api, branch)
        return len(queries)

    post(api, branch, path="README", first_line=1, excerpt="changed", text="x")
    few = count()
    for number in range(10):
        post(api, branch, path=f"file {number}", first_line=1, excerpt="x", text="x", id=str(uuid.uuid4()))
    # Files that do not differ are read one by one, so that the session's execution is looked up for each.
    assert count() <= few + 10
