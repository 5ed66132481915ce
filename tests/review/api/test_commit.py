"""Selected files are committed over the API exactly as they were listed, with a real agentctl."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from tests.api.world import client_of
from tests.executors.repositories import run_git
from tests.workspace.served import Served

pytestmark = pytest.mark.any_database


def test_only_what_was_listed_is_committed(served: Served, api: APIClient) -> None:
    root = served.workspace
    (root / "README").write_text("seen\n")
    (root / "new").write_text("stays\n")
    listed = api.get(served.url("review/commit/")).json()
    assert [file["path"] for file in listed["files"]] == ["README", "new"]
    files = [{name: listed["files"][0][name] for name in ("path", "content", "version")}]
    (root / "README").write_text("written meanwhile\n")
    body = {"message": "Change README", "files": files}
    refused = api.post(served.url("review/commit/"), body, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "file_changed")
    assert refused.json()["message"].endswith("README (changed)")
    assert run_git(root, "log", "-1", "--format=%s") == "Write README"

    (root / "README").write_text("seen\n")
    made = api.post(served.url("review/commit/"), body, format="json").json()
    assert made == {"commit": run_git(root, "rev-parse", "HEAD"), "branch": made["branch"], "subject": "Change README"}
    user = served.world.member.get_username()
    assert run_git(root, "log", "-1", "--format=%an|%cn|%ae") == f"{user}|{user}|{user}@localhost"
    assert run_git(root, "status", "--porcelain") == "?? new"
    assert api.post(served.url("review/commit/"), body, format="json").json()["code"] == "file_changed"

    invalid: list[dict[str, Any]] = [{"files": []}, {"files": [{**files[0], "content": "all"}]}, {"message": ""}]
    for wrong in invalid:
        assert api.post(served.url("review/commit/"), body | wrong, format="json").status_code == 400
    stranger = client_of(served.world.stranger)
    assert stranger.get(served.url("review/commit/")).status_code == 404
    assert stranger.post(served.url("review/commit/"), body, format="json").status_code == 404
