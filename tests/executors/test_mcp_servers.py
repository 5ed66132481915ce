"""The schema of MCP servers, their references to secrets, and the precedence of levels."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from executors_app.mcp_servers import check_mcp_servers, merge_servers, resolve_secrets

HTTP = {"name": "docs", "url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer secret:TOKEN"}}
PROGRAM = {"name": "files", "command": "npx", "args": ["-y", "files"], "env": {"KEY": "secret:KEY", "LEVEL": "info"}}


@pytest.mark.parametrize(
    "server",
    [
        HTTP,
        PROGRAM,
        {**HTTP, "type": "sse"},
        {**PROGRAM, "type": "stdio"},
        {**HTTP, "headers": [{"name": "X-Team", "value": "a"}]},
        {"name": "a b.c_d-1", "command": "/bin/files"},
    ],
)
def test_valid_server_is_accepted(server: dict[str, Any]) -> None:
    check_mcp_servers([server])


@pytest.mark.parametrize(
    ("servers", "text"),
    [
        ({}, "list of objects"),
        (["docs"], "list of objects"),
        ([{}], "with a name"),
        ([{"name": "x\ny", "command": "a"}], "with a name"),
        ([{"name": "docs"}], "needs a url"),
        ([HTTP, HTTP], "Two servers"),
        ([PROGRAM | {"name": str(number)} for number in range(51)], "at most 50"),
        ([{**HTTP, "command": "sh"}], "'command'"),
        ([{**PROGRAM, "headers": {}}], "'headers'"),
        ([{**HTTP, "type": "stdio"}], "http or sse"),
        ([{**PROGRAM, "type": "http"}], "must be stdio"),
        ([{**HTTP, "url": "file:///etc/passwd"}], "http or https"),
        ([{**HTTP, "url": "https://"}], "http or https"),
        ([{**HTTP, "url": "https://a:70000/"}], "http or https"),
        ([{**HTTP, "url": "https://user:word@a/"}], "no login"),
        ([{**HTTP, "headers": {"A b": "c"}}], "not valid"),
        ([{**HTTP, "headers": {"A": "b\r\nC: d"}}], "not valid"),
        ([{**HTTP, "headers": {"A": 1}}], "string values"),
        ([{**HTTP, "headers": "A: b"}], "string values"),
        ([{**PROGRAM, "env": {"A=B": "c"}}], "not valid"),
        ([{**PROGRAM, "args": "-y"}], "list of strings"),
        ([{**PROGRAM, "command": " "}], "is empty"),
        ([{**PROGRAM, "command": ["npx"]}], "must be text"),
        ([{**PROGRAM, "args": ["x" * 10_001]}], "too long"),
    ],
)
def test_invalid_list_is_rejected(servers: Any, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        check_mcp_servers(servers)


def test_references_become_the_values_of_the_profile() -> None:
    env = {"TOKEN": "t0k3n", "KEY": "k3y"}
    assert resolve_secrets(HTTP, env) == ({**HTTP, "headers": {"Authorization": "Bearer t0k3n"}}, [])
    assert resolve_secrets(PROGRAM, env) == ({**PROGRAM, "env": {"KEY": "k3y", "LEVEL": "info"}}, [])


def test_missing_variables_are_named() -> None:
    assert resolve_secrets(HTTP, {"KEY": "k3y"})[1] == ["TOKEN"]


def test_first_level_wins_by_name() -> None:
    team, repository = [HTTP, PROGRAM], [{**PROGRAM, "command": "uvx"}]
    merged = merge_servers(("profile", []), ("repository", repository), ("team", team))
    assert [(level, server["name"]) for level, server in merged] == [("repository", "files"), ("team", "docs")]
