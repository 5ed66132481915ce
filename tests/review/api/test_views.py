"""The changes of a session's branch over the API, with a real agentctl."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from executors_app.machine.git.branch_changes import MAX_PATHS
from executors_app.models import ExecutorRunning
from executors_app.wire.errors import AgentctlOutdated
from sessions_app.models import Task
from sessions_app.review import services
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
    commit(served.workspace, "committed", "one\n")
    (served.workspace / "README").write_text("changed\n")
    return served


def test_branch_is_shown_against_the_base_of_its_task(branch: Served, api: APIClient) -> None:
    answer = api.get(branch.url("review/")).json()
    assert [(file["path"], file["change"], file["uncommitted"]) for file in answer["files"]] == [
        ("README", "modified", True),
        ("committed", "added", False),
    ]
    assert (answer["base"]["name"], answer["branch"], answer["ahead"], answer["behind"]) == ("main", "work", 1, 0)
    assert (answer["additions"], answer["deletions"], answer["count"], answer["truncated"]) == (2, 1, 2, False)


def test_hunks_of_several_files_are_returned_in_the_order_of_the_request(branch: Served, api: APIClient) -> None:
    answer = api.get(branch.url("review/hunks/?path=committed&path=README&path=same&lines_around=0")).json()
    assert [file["path"] for file in answer["files"]] == ["committed", "README", "same"]
    assert [[hunk["lines"] for hunk in file["hunks"]] for file in answer["files"]] == [
        [["+one"]],
        [["-hello", "+changed"]],
        [],
    ]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "path"),
        ("path=", "path"),
        ("path=a%00b", "path"),
        ("&".join(["path=x"] * (MAX_PATHS + 1)), "path"),
        ("path=x&lines_around=-1", "lines_around"),
        ("path=x&lines_around=100001", "lines_around"),
        ("path=x&lines_around=--all", "lines_around"),
    ],
)
def test_invalid_request_for_hunks_is_refused(branch: Served, api: APIClient, query: str, field: str) -> None:
    answer = api.get(branch.url(f"review/hunks/?{query}"))
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
    assert list(answer.json()["details"]) == [field]


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", ".git/config"])
def test_path_that_leads_elsewhere_is_refused(branch: Served, api: APIClient, path: str) -> None:
    answer = api.get(branch.url("review/hunks/"), {"path": path})
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")


def test_strangers_find_nothing(branch: Served) -> None:
    for tail in ("review/", "review/hunks/?path=README"):
        assert client_of(branch.world.stranger).get(branch.url(tail)).status_code == 404


def test_outdated_agentctl_is_named(branch: Served, api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: Any, call: Any) -> None:
        raise AgentctlOutdated

    monkeypatch.setattr(services, "ask_agentctl", refuse)
    for tail in ("review/", "review/hunks/?path=README"):
        answer = api.get(branch.url(tail))
        assert (answer.status_code, answer.json()["code"]) == (409, "agentctl_outdated")


def test_number_of_queries_does_not_grow_with_the_changes(branch: Served, api: APIClient) -> None:
    def count(tail: str) -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert api.get(branch.url(tail)).status_code == 200
        return len(queries)

    tails = ("review/", "review/hunks/?path=README")
    few = [count(tail) for tail in tails]
    for number in range(20):
        (branch.workspace / f"new {number}").write_text("x\n")
    assert [count("review/"), count("review/hunks/?path=README&path=new%201&path=new%202")] == few


def test_branch_is_unreachable_without_agentctl(branch: Served, api: APIClient) -> None:
    ExecutorRunning.objects.update(status="stopped")
    for tail in ("review/", "review/hunks/?path=README"):
        answer = api.get(branch.url(tail))
        assert (answer.status_code, answer.json()["code"]) == (503, "agentctl_unreachable")
