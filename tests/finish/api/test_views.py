"""Merges over the API and by tools of the MCP server, in a real repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from sessions_app.finish.execution import carry_out
from sessions_app.kernel.services.errors import ReadOnly
from sessions_app.mcp_server import arguments, finishing
from tests.finish.repositories import Mergeable, mergeable
from tests.supervisor.rows import fresh, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


@pytest.fixture
def merged(tmp_path: Path) -> Mergeable:
    return mergeable(tmp_path / "team")


@pytest.fixture
def api() -> APIClient:
    client = APIClient()
    client.force_authenticate(make_user())
    return client


def url(merged: Mergeable, name: str) -> str:
    return f"/api/v1/tasks/{merged.session.task_id}/sessions/{merged.session.id}/{name}/"


def confirmation(api: APIClient, merged: Mergeable, strategy: str = "squash") -> dict[str, Any]:
    answer = api.get(url(merged, "merge"), {"strategy": strategy}).json()
    assert (answer["problem"], answer["ahead"], answer["behind"], answer["may_merge"]) == ("", 2, 1, True)
    assert answer["uncommitted"] is None, "nobody knows"
    return {"strategy": strategy, **{name: answer[name] for name in ("branch_commit", "target_commit")}}


def test_reviewed_commit_is_merged_once(merged: Mergeable, api: APIClient) -> None:
    body = confirmation(api, merged)
    answer = api.post(url(merged, "merge"), {**body, "message": "Add both"}, format="json")
    assert (answer.status_code, answer.json()["state"]) == (202, "requested")
    carry_out(merged.session.finish_intents.get().id)
    assert merged.subjects()[0] == "Add both"
    again = api.post(url(merged, "merge"), body, format="json").json()
    assert (again["id"], again["state"], again["result_commit"]) == (answer.json()["id"], "done", merged.at())
    listed = api.get(url(merged, "finish")).json()
    assert [row["id"] for row in listed["results"]] == [again["id"]]


def test_what_has_moved_or_conflicts_is_409_with_the_reason(merged: Mergeable, api: APIClient) -> None:
    body = confirmation(api, merged)
    merged.commit_to("main", "one", "other\n")
    answer = api.post(url(merged, "merge"), body, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_mergeable")
    assert answer.json()["details"]["reason"] == "merge_target_moved"
    body["target_commit"] = merged.at()
    answer = api.post(url(merged, "merge"), body, format="json")
    assert answer.json()["details"] == {"reason": "merge_conflict", "conflicts": ["one"]}


def test_member_without_the_right_may_look_only(tmp_path: Path, api: APIClient) -> None:
    merged = mergeable(tmp_path / "team", right=False)
    answer = api.get(url(merged, "merge")).json()
    assert (answer["problem"], answer["may_merge"]) == ("", False)
    body = {"strategy": "merge", **{name: answer[name] for name in ("branch_commit", "target_commit")}}
    assert api.post(url(merged, "merge"), body, format="json").status_code == 403


def test_tools_merge_what_was_previewed(merged: Mergeable) -> None:
    ada = make_user()
    looked = finishing.preview_merge(ada, arguments.PreviewMergeArguments(session_id=merged.session.id))
    assert (looked.problem, looked.ahead, looked.target) == ("", 2, "main")
    request = arguments.MergeSessionArguments(
        session_id=merged.session.id,
        strategy="merge",
        branch_commit=looked.branch_commit,
        target_commit=looked.target_commit,
    )
    assert finishing.merge_session(ada, request).state == "requested"
    carry_out(merged.session.finish_intents.get().id)
    done = finishing.merge_session(ada, request)
    assert (done.state, done.result_commit) == ("done", merged.at())


def test_tools_need_the_right(tmp_path: Path) -> None:
    merged = mergeable(tmp_path / "team", right=False)
    ada = make_user()
    looked = finishing.preview_merge(ada, arguments.PreviewMergeArguments(session_id=merged.session.id))
    request = arguments.MergeSessionArguments(
        session_id=merged.session.id,
        strategy="merge",
        branch_commit=looked.branch_commit,
        target_commit=looked.target_commit,
    )
    with pytest.raises(ReadOnly):
        finishing.merge_session(ada, request)
    assert not fresh(merged.session).finish_intents.exists()
