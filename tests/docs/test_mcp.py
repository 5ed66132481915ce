"""docs/mcp.md lists every tool and every outcome of a turn."""

from __future__ import annotations

import re

from sessions_app.mcp_server.arguments import MAX_WAIT
from sessions_app.mcp_server.results import Outcome
from sessions_app.mcp_server.tools import TOOLS
from tests.docs.documents import text_of

_TOOL = re.compile(r"^\| `(\w+)` \| (yes|no) \|", re.MULTILINE)


def test_table_of_tools_is_complete() -> None:
    assert _TOOL.findall(text_of("mcp.md")) == [(tool.name, "no" if tool.reads_only else "yes") for tool in TOOLS]


def test_table_of_outcomes_is_complete() -> None:
    table = text_of("mcp.md").split("| outcome | ", 1)[1].split("\n\n", 1)[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert named == [str(outcome) for outcome in Outcome]


def test_longest_wait_is_documented() -> None:
    assert f"at most {MAX_WAIT}" in text_of("mcp.md")
