"""Files and git of a session over the API, with a real agentctl and no agent."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from rest_framework.test import APIClient

from executors_app import plugins
from executors_app.models import ExecutorRunning
from tests.api.world import client_of
from tests.executors.repositories import run_git
from tests.workspace.served import Served


def put(api: APIClient, served: Served, path: str, body: Any, expected: str | None = None) -> Any:
    headers = {"If-Match": expected} if expected is not None else {}
    kind = "json" if isinstance(body, dict) else None
    raw: dict[str, Any] = {"content_type": "application/octet-stream"} if kind is None else {"format": kind}
    return api.put(f"{served.url('files/content/')}?path={path}", body, headers=headers, **raw)


def test_file_is_found_by_a_few_letters(served: Served, api: APIClient) -> None:
    found = api.get(served.url("files/search/"), {"query": "rdm"}).json()
    assert found == {"query": "rdm", "entries": [{"path": "README", "type": "file"}], "truncated": False}
    assert api.get(served.url("files/search/"), {"query": "x" * 65}).status_code == 400


def test_file_is_read_written_and_committed(served: Served, api: APIClient) -> None:
    read = api.get(served.url("files/content/"), {"path": "README"}).json()
    assert (read["content"], read["binary"]) == ("hello\n", False)

    written = put(api, served, "README", {"content": "changed\n"}, read["hash"])

    assert (written.status_code, written.json()["hash"]) == (200, hashlib.sha256(b"changed\n").hexdigest())
    status = api.get(served.url("git/status/")).json()
    assert (status["unstaged"], status["clean"]) == ([{"path": "README", "change": "modified"}], False)
    assert "+changed" in api.get(served.url("git/diff/"), {"path": "README"}).json()["unstaged"]

    made = api.post(served.url("git/commit/"), {"message": "Change it"}, format="json").json()

    newest = api.get(served.url("git/log/"), {"limit": 1}).json()
    assert newest["commits"][0]["id"] == made["commit"] == run_git(served.workspace, "rev-parse", "HEAD")
    assert (newest["commits"][0]["author"], newest["commits"][0]["email"]) == ("member", "member@localhost")
    assert newest["more"] is True
    assert api.get(served.url("git/status/")).json()["clean"]


@pytest.mark.parametrize(
    "body", [b"\0\xff", {"content": base64.b64encode(b"\0\xff").decode(), "encoding": "base64"}], ids=["raw", "base64"]
)
def test_new_binary_file_is_created(served: Served, api: APIClient, body: Any) -> None:
    assert put(api, served, "new", body).status_code == 201
    assert (served.workspace / "new").read_bytes() == b"\0\xff"
    read = api.get(served.url("files/content/"), {"path": "new"}).json()
    assert (read["encoding"], read["binary"], read["content"]) == ("base64", True, "AP8=")


def test_unseen_changes_are_not_overwritten(served: Served, api: APIClient) -> None:
    for expected in (None, "0" * 64):
        answer = put(api, served, "README", {"content": "mine"}, expected)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert (served.workspace / "README").read_text() == "hello\n"
    assert put(api, served, "README", {"content": "mine"}, "*").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("../up", {"content": ""}, 400),
        (".git/config", {"content": ""}, 400),
        ("", {"content": ""}, 400),
        ("x", {}, 400),
        ("x", {"content": 1}, 400),
        ("x", {"content": "%%", "encoding": "base64"}, 400),
        ("x", {"content": "x", "encoding": "latin-1"}, 400),
        ("no/such", {"content": ""}, 404),
        ("x", b"x" * ((4 << 20) + 1), 413),
        ("x", b"x" * ((8 << 20) + 1), 413),
    ],
)
def test_invalid_write_is_refused(served: Served, api: APIClient, path: str, body: Any, status: int) -> None:
    answer = put(api, served, path, body)
    assert answer.status_code == status, answer.content
    assert answer.json().keys() == {"code", "message", "details"}


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 201}, {"skip": -1}, {"ref": "--all"}, {"ref": "a..b"}])
def test_invalid_history_query_is_refused(served: Served, api: APIClient, query: dict[str, Any]) -> None:
    assert api.get(served.url("git/log/"), query).status_code == 400


def test_empty_commit_is_a_conflict(served: Served, api: APIClient) -> None:
    answer = api.post(served.url("git/commit/"), {"message": "Nothing"}, format="json")
    assert (answer.status_code, answer.json()["message"]) == (409, "there is nothing to commit")


def test_user_name_cannot_forge_the_author(served: Served, api: APIClient) -> None:
    member = served.world.member
    member.first_name, member.last_name = "A\n<b@c>", "D"
    member.save()
    (served.workspace / "new").write_text("x")
    assert api.post(served.url("git/commit/"), {"message": "m"}, format="json").status_code == 200
    assert run_git(served.workspace, "log", "-1", "--format=%an|%ae") == "Ab@c D|member@localhost"


class TestWriteRights:
    """Rights to write files: where agents are not isolated, a written file may be executed (rule 39)."""

    def test_member_without_the_right_cannot_write_files(self, served: Served) -> None:
        member = client_of(served.world.member)
        assert put(member, served, "new", {"content": "x"}).json()["code"] == "permission_denied"
        assert member.get(served.url("files/")).status_code == 200
        (served.workspace / "new").write_text("x")
        assert member.post(served.url("git/commit/"), {"message": "m"}, format="json").status_code == 200

    def test_staff_of_the_team_can_write(self, served: Served) -> None:
        assert put(client_of(served.world.staff), served, "new", {"content": "x"}).status_code == 201

    def test_member_can_write_where_agents_are_isolated(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(plugins.runtime("local_standalone")), "isolated", True)
        assert put(client_of(served.world.member), served, "new", {"content": "x"}).status_code == 201


@pytest.mark.parametrize("values", [{"status": "stopped"}, {"agentctl_url": "unix:/nowhere/agentctl"}])
def test_every_endpoint_is_unreachable_without_agentctl(served: Served, api: APIClient, values: dict[str, str]) -> None:
    ExecutorRunning.objects.update(**values)
    answers = [
        *(api.get(served.url(tail), {"path": "x"}) for tail in ("files/content/", "git/status/", "git/diff/")),
        api.get(served.url("git/log/")),
        api.post(served.url("git/commit/"), {"message": "m"}, format="json"),
        put(api, served, "x", {"content": ""}),
    ]
    assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(503, "agentctl_unreachable")}
