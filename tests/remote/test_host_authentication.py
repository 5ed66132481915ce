"""A host refuses requests without its token, from browsers or under other names, and paths that leave it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors_app.agentctl.http.server import BODY_LIMIT
from tests.executors.launches import TOKEN as INSTANCE_TOKEN
from tests.executors.repositories import make_repository
from tests.remote.host_requests import DEPLOYMENT, instance_request, send_request
from tests.remote.machines import TOKEN, Machine

SOME = "6f1b7a52-2c2d-4a1b-8f0e-0d4a4c1f9b11"
ENDPOINTS = [
    ("GET", "/host"),
    ("GET", "/instances"),
    ("POST", "/instances"),
    ("DELETE", f"/instances/{SOME}"),
    ("GET", f"/instances/{SOME}/status"),
    ("POST", f"/instances/{SOME}/prompt"),
    ("GET", f"/instances/{SOME}/events?generation=1"),
    ("GET", f"/left/{SOME}"),
    ("GET", f"/left/{SOME}/journal"),
    ("POST", f"/left/{SOME}/end"),
    ("GET", "/none/such"),
]
INTRUDERS: dict[str, tuple[dict[str, str], int, str]] = {
    "no token": ({"Authorization": ""}, 401, "not_authenticated"),
    "a wrong token": ({"Authorization": f"Bearer {TOKEN}x"}, 401, "not_authenticated"),
    "a prefix of the token": ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401, "not_authenticated"),
    "another scheme": ({"Authorization": f"Basic {TOKEN}"}, 401, "not_authenticated"),
    "a token that is not text": ({"Authorization": "Bearer \u00ff\u00fe"}, 401, "not_authenticated"),
    "a foreign host": ({"Host": "evil.example"}, 403, "forbidden_host"),
    "our host, another port": ({"Host": "127.0.0.2:1"}, 403, "forbidden_host"),
    "a browser": ({"Origin": "https://127.0.0.2"}, 403, "forbidden_origin"),
}
INVALID_IDS = ["..", "%2e%2e", "..%2f..", "%2fetc", "x" * 300, "{id}", SOME.upper(), f"{SOME}%00", f" {SOME}", "0"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("source") / "repository")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("there") / "machine", [str(repository)])
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize(("headers", "status", "code"), INTRUDERS.values(), ids=INTRUDERS)
async def test_every_endpoint_refuses_unauthorized_requests(
    machine: Machine, headers: dict[str, str], status: int, code: str
) -> None:
    for method, path in ENDPOINTS:
        answer = await send_request(machine, method, path, {} if method == "POST" else None, headers=headers)
        assert (answer[0], answer[1]["code"]) == (status, code), (method, path)
        assert answer[1].keys() == {"code", "message", "details"}


async def test_health_needs_no_token_but_the_right_host_and_no_browser(machine: Machine) -> None:
    status, health = await send_request(machine, "GET", "/health", headers={"Authorization": ""})
    assert (status, health["status"]) == (200, "ok")
    assert (await send_request(machine, "GET", "/health", headers={"Host": "evil.example"}))[0] == 403
    assert (await send_request(machine, "GET", "/health", headers={"Origin": "null"}))[0] == 403


async def test_host_and_instance_tokens_open_only_their_own(machine: Machine, repository: Path) -> None:
    made, other = (
        instance_request(str(repository)),
        instance_request(str(repository), token="the-token-of-another-instance"),
    )
    for one in (made, other):
        assert (await send_request(machine, "POST", "/instances", one))[0] == 200
    path = f"/instances/{made['execution_id']}/status"
    assert (await send_request(machine, "GET", path, token=INSTANCE_TOKEN))[0] == 200
    for token in (TOKEN, other["token"]):
        assert (await send_request(machine, "GET", path, token=token))[0] == 401
    assert (await send_request(machine, "GET", "/instances", token=INSTANCE_TOKEN))[0] == 401


@pytest.mark.parametrize("name", INVALID_IDS)
async def test_invalid_id_is_rejected_before_any_lookup(machine: Machine, name: str) -> None:
    proof = {"session_id": SOME, "deployment": DEPLOYMENT}
    calls = [("DELETE", f"/instances/{name}"), ("GET", f"/left/{name}"), ("GET", f"/instances/{name}/status")]
    for method, path in calls:
        status, body = await send_request(machine, method, path, proof if method == "DELETE" else None)
        assert status in (400, 401, 404, 405), (path, body)
        assert set(body) == {"code", "message", "details"}


@pytest.mark.parametrize(
    "changes",
    [
        {"execution_id": "../../etc"},
        {"execution_id": SOME.upper()},
        {"session_id": "x"},
        {"task_id": None},
        {"deployment": "with blanks"},
        {"token": "short"},
        {"token": "a token with blanks in it"},
        {"token": "a-token\nthat-is-two-headers"},
        {"repository": 7},
        {"base_branch": []},
    ],
    ids=str,
)
async def test_invalid_instance_request_is_refused(
    machine: Machine, repository: Path, changes: dict[str, object]
) -> None:
    status, body = await send_request(machine, "POST", "/instances", instance_request(str(repository), **changes))
    assert (status, body["code"]) == (400, "validation_error")
    assert body["details"]["field"] in changes


@pytest.mark.parametrize("raw", [b"{", b"[]", b"\xff", b'"x"'])
async def test_body_that_is_not_an_object_is_refused(machine: Machine, raw: bytes) -> None:
    status, body = await send_request(machine, "POST", "/instances", raw=raw)
    assert (status, body["code"]) == (400, "validation_error")


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "61", "x"])
async def test_invalid_timeout_is_refused(machine: Machine, timeout: str) -> None:
    status, body = await send_request(machine, "GET", f"/instances?timeout={timeout}")
    assert (status, body["code"]) == (400, "validation_error")


async def test_oversized_body_is_refused_with_and_without_its_length(machine: Machine, repository: Path) -> None:
    made = instance_request(str(repository))
    assert (await send_request(machine, "POST", "/instances", made))[0] == 200
    large = b"x" * (BODY_LIMIT + 1)
    path = f"/instances/{made['execution_id']}/files/content?path=large"
    for where, token in (("/instances", TOKEN), (path, INSTANCE_TOKEN)):
        method = "POST" if where == "/instances" else "PUT"
        for chunked in (None, True):
            status, body = await send_request(machine, method, where, token=token, raw=large, chunked=chunked)
            assert (status, body["code"]) == (413, "too_large"), (where, chunked)


async def test_instance_paths_cannot_reach_others_or_the_host(machine: Machine, repository: Path) -> None:
    made = instance_request(str(repository))
    assert (await send_request(machine, "POST", "/instances", made))[0] == 200
    base = f"/instances/{made['execution_id']}"
    for tail in ("/%2e%2e/%2e%2e/host", "/..%2fstatus", "//127.0.0.1:1/status", "/http://127.0.0.1:1/", "/"):
        status, body = await send_request(machine, "GET", base + tail, token=INSTANCE_TOKEN)
        assert (status, body["code"]) in {(404, "not_found"), (401, "not_authenticated")}, tail
    status, _ = await send_request(machine, "GET", f"{base}/files?path=../..", token=INSTANCE_TOKEN)
    assert status in (400, 404)


async def test_other_deployment_can_neither_take_nor_end_an_instance(machine: Machine, repository: Path) -> None:
    made = instance_request(str(repository))
    assert (await send_request(machine, "POST", "/instances", made))[0] == 200
    one = made["execution_id"]
    thieves = [
        {"deployment": "another"},
        {"session_id": str(uuid.uuid4())},
        {"token": "another-token-of-some-length"},
        {"worktree_path": "/etc", "worktree_branch": "main"},
    ]
    for stolen in thieves:
        status, body = await send_request(machine, "POST", "/instances", {**made, **stolen})
        assert (status, body["code"]) == (409, "conflict"), stolen
    for proof in ({**made, "deployment": "another"}, {**made, "session_id": SOME}):
        for method, path in (("DELETE", f"/instances/{one}"), ("POST", f"/left/{one}/end")):
            assert (await send_request(machine, method, path, proof))[1]["code"] == "conflict"
    status, report = await send_request(machine, "GET", f"/instances/{one}/status", token=INSTANCE_TOKEN)
    assert (status, report["execution_id"]) == (200, one)


async def test_no_token_is_in_the_log_or_in_a_list(machine: Machine, repository: Path) -> None:
    made = instance_request(str(repository), token="a-secret-of-one-instance")
    assert (await send_request(machine, "POST", "/instances", made))[0] == 200
    status, listed = await send_request(machine, "GET", "/instances")
    assert status == 200
    assert made["execution_id"] in {one["execution_id"] for one in listed["instances"]}
    for secret in (TOKEN, made["token"]):
        assert secret not in str(listed)
        assert secret not in machine.log()
