"""The MCP servers that an agent is given at its start, and the report about those left out."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from executors_app.models import AgentProfile
from executors_app.wire.protocol import JournalKind
from sessions_app.agents.events import left_out_sentence
from sessions_app.models import Intent, McpServerList, TaskSession
from sessions_app.sessions.services.status import session_status
from sessions_app.starts import agent_start, claims
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, fresh, last_payload
from tests.supervisor.start_claims import claim_start, session_without_agent

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

DOCS = {"name": "docs", "type": "http", "url": "https://docs.example/mcp", "headers": {"Authorization": "secret:TOKEN"}}
FILES = {"name": "files", "command": "files", "args": []}
EVENT = "session.mcp_servers.left_out"


def session_with_servers(env: dict[str, str] | None = None, **lists: list[dict[str, Any]]) -> TaskSession:
    """Return a session whose profile, repository and team have these servers."""
    session = session_without_agent()
    profile, task = session.agent_profile, session.task
    profile.env, profile.mcp_servers = env or {}, lists.get("profile", [])
    profile.secret_hosts = {"TOKEN": ["docs.example"]}
    profile.save()
    McpServerList.objects.create(team=task.team, servers=lists.get("team", []))
    if task.repository is not None:
        McpServerList.objects.create(team=task.team, repository=task.repository, servers=lists.get("repository", []))
    return fresh(session)


def servers_of_start(session: TaskSession) -> list[dict[str, Any]]:
    plan = claim_start(session)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    return list(order.body["mcp_servers"])


def test_agent_gets_profile_over_repository_over_team() -> None:
    of_team = [{**FILES, "command": level} for level in ("team",)]
    session = session_with_servers(
        {"TOKEN": "t0k3n"},
        profile=[{**DOCS, "url": "https://profile.example/"}],
        repository=[{**FILES, "command": "repository"}],
        team=[*of_team, DOCS, {"name": "search", "command": "search"}],
    )
    given = {server["name"]: server for server in servers_of_start(session)}
    assert given["docs"] == {**DOCS, "url": "https://profile.example/", "headers": {"Authorization": "t0k3n"}}
    assert (given["files"]["command"], given["search"]["command"]) == ("repository", "search")
    servers = session_status(fresh(session))["mcp_servers"]
    assert {each["name"]: each["from"] for each in servers} == {
        "docs": "profile",
        "files": "repository",
        "search": "team",
    }


def test_no_secret_reaches_a_row_or_the_log() -> None:
    session = session_with_servers({"TOKEN": "t0k3n"}, team=[DOCS])
    servers_of_start(session)
    assert "t0k3n" not in str(list(Intent.objects.values())) + str(fresh(session).metadata)
    assert "t0k3n" not in str(list(session.events.values()))


def test_server_with_a_missing_secret_is_left_out_and_reported() -> None:
    session = session_with_servers(team=[DOCS, FILES])
    assert [server["name"] for server in servers_of_start(session)] == ["files"]
    left_out = {"name": "docs", "from": "team", "reason": "secret_missing", "variables": ["TOKEN"]}
    assert last_payload(session, EVENT)["servers"] == [left_out]
    assert left_out in session_status(fresh(session))["mcp_servers"]


def test_retried_start_keeps_its_servers() -> None:
    session = session_with_servers(team=[FILES])
    plan = claim_start(session)
    assert agent_start.prepare_agent_start(plan, plan.lease, found="") is not None
    McpServerList.objects.filter(repository=None).update(servers=[])
    again = claims.claim_start(session.id, plan.intent_id, MINE.owner, running_launch_id=None)
    assert again is not None
    order = agent_start.prepare_agent_start(again, again.lease, found="")
    assert order is not None
    assert [server["name"] for server in order.body["mcp_servers"]] == ["files"]


def test_report_of_agentctl_is_stored_and_logged_once() -> None:
    session = session_with_servers({"TOKEN": "t"}, team=[DOCS, FILES])
    servers_of_start(session)
    launch = fresh(session).metadata["mcp_servers"]["launch_id"]
    journal, body = Journal("epoch-2"), [{"name": "docs", "reason": "http_unsupported"}, {"name": "x", "reason": 1}]
    for _ in range(2):
        ingest(session, [journal.line(JournalKind.MCP_SERVERS_LEFT_OUT, launch_id=launch, servers=body)])
    assert session.events.filter(name=EVENT).count() == 1
    reasons = {each["name"]: each["reason"] for each in session_status(fresh(session))["mcp_servers"]}
    assert reasons == {"docs": "http_unsupported", "files": ""}


def test_report_about_another_start_changes_nothing() -> None:
    session = session_with_servers(team=[FILES])
    servers_of_start(session)
    line = Journal("epoch-2").line(
        JournalKind.MCP_SERVERS_LEFT_OUT, launch_id="another", servers=[{"name": "files", "reason": "unsupported"}]
    )
    ingest(session, [line])
    assert session_status(fresh(session))["mcp_servers"][0]["reason"] == ""


def test_session_without_servers_stores_nothing() -> None:
    session = session_with_servers()
    assert servers_of_start(session) == []
    assert "mcp_servers" not in fresh(session).metadata
    assert AgentProfile.objects.get().mcp_servers == []


def at(url: str, **headers: str) -> dict[str, Any]:
    return {**DOCS, "url": url, "headers": {"Authorization": "secret:TOKEN", **headers}}


PROGRAM = {"name": "docs", "command": "docs", "args": ["--stdio"], "env": {"KEY": "secret:TOKEN"}}


@pytest.mark.parametrize(
    ("server", "hosts", "given"),
    [
        (at("https://docs.example/mcp"), ["docs.example"], True),
        (at("https://DOCS.example:443/mcp"), ["docs.example"], True),
        (at("https://docs.example:8443/"), ["other.example", "docs.example:8443"], True),
        (at("http://docs.example:8080/"), ["http://docs.example:8080"], True),
        (at("https://[::1]:8443/"), ["[::1]:8443"], True),
        (PROGRAM, ["any program"], True),
        (at("https://evil.example/"), ["docs.example"], False),
        (at("https://docs.example.evil.example/"), ["docs.example"], False),
        (at("https://evil.example/?docs.example"), ["docs.example"], False),
        (at("https://evil.example\\@docs.example/"), ["docs.example"], False),
        (at("https://docs.example\\@evil.example/"), ["docs.example"], False),
        (at("https://docs.example@evil.example/"), ["docs.example"], False),
        (at("https://docs.example:8443/"), ["docs.example"], False),
        (at("http://docs.example/"), ["docs.example"], False),
        (at("https://docs.example/"), [], False),
        (PROGRAM, ["docs.example"], False),
        (at("https://docs.example/", Host="evil.example"), ["docs.example"], False),
        (at("https://docs.example/", **{"x-forwarded-HOST": "evil.example"}), ["docs.example"], False),
    ],
)
@pytest.mark.parametrize("level", ["team", "repository"])
def test_secret_goes_only_to_hosts_that_the_profile_names(
    server: dict[str, Any], hosts: list[str], given: bool, level: str
) -> None:
    session = session_with_servers({"TOKEN": "t0k3n"}, **{level: [server]})
    AgentProfile.objects.update(secret_hosts={"TOKEN": hosts, "OTHER": ["evil.example"]})
    servers = servers_of_start(fresh(session))
    assert ("t0k3n" in str(servers)) is given
    [server_status] = session_status(fresh(session))["mcp_servers"]
    reason, variables = ("", []) if given else ("secret_withheld", ["TOKEN"])
    assert (server_status["reason"], server_status["variables"]) == (reason, variables)
    assert ("does not give TOKEN to its host" in left_out_sentence(server_status)) is not given


def test_profiles_own_servers_get_what_they_refer_to() -> None:
    session = session_with_servers(
        {"TOKEN": "t0k3n"}, profile=[at("https://anywhere.example/"), {**PROGRAM, "name": "p"}]
    )
    AgentProfile.objects.update(secret_hosts={})
    assert str(servers_of_start(fresh(session))).count("t0k3n") == 2


@pytest.mark.parametrize(
    "destinations",
    [
        ["docs.example"],
        {"TOKEN": "docs.example"},
        {"A B": ["docs.example"]},
        {"TOKEN": ["*.example"]},
        {"TOKEN": ["https://docs.example/path"]},
        {"TOKEN": ["docs.example@evil.example"]},
        {"TOKEN": ["DOCS.example"]},
        {"TOKEN": [""]},
    ],
)
def test_malformed_secret_hosts_are_refused(destinations: Any) -> None:
    with pytest.raises(ValidationError):
        AgentProfile(name="a", agent_type="demo", secret_hosts=destinations).clean()
