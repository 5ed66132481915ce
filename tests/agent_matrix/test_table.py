"""The matrix is a table whose cells are measured or empty, and names only agents that Kandev knows."""

from __future__ import annotations

import re

import pytest

from executors_app.plugins import agent_types
from tests.agent_matrix.drilled_agents import AGENTS
from tests.agent_matrix.drills import DRILLS
from tests.agent_matrix.table import (
    COLUMNS,
    DOCUMENT,
    DRILL_COLUMNS,
    Row,
    drills_document,
    matrix_document,
    with_drills,
    with_matrix,
)
from tests.real_agents.background_commands import LEAVING, document_table
from tests.real_agents.homes import AGENT_TYPES
from tests.services import ROOT

pytestmark = pytest.mark.any_database


def test_unmeasured_cell_is_empty() -> None:
    rows = [Row("codex", "2.6.0", {"start": "2.4 s", "cancel": "cancelled, 0.1 s"}), Row("agentao")]
    lines = matrix_document(rows, day="2026-11-26", machine="2 cores", rounds=3, hold=20).splitlines()[-2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["`agentao`", *[""] * (len(COLUMNS) + 1)]
    assert [cell for cell in cells[1] if cell] == ["`codex`", "2.6.0", "2.4 s", "cancelled, 0.1 s"]


def test_cell_without_a_column_is_refused() -> None:
    with pytest.raises(KeyError, match="speed"):
        matrix_document([Row("codex", cells={"speed": "1"})], day="", machine="", rounds=3, hold=20)


def test_committed_matrix_names_known_agents_and_has_every_column() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` ", text, re.MULTILINE)
    assert named
    assert set(named) <= set(agent_types())
    for columns in (COLUMNS, DRILL_COLUMNS):
        assert f"| type | version | {' | '.join(columns)} |" in text


def test_each_command_writes_its_own_part_of_the_document() -> None:
    matrix = matrix_document([Row("codex", "1")], day="", machine="", rounds=3, hold=20)
    newer = matrix_document([Row("codex", "2")], day="", machine="", rounds=3, hold=20)
    drills = drills_document([Row("codex", "1", {"cancel": "cancelled"})], day="")
    both = with_drills(matrix, drills)
    assert both == f"{matrix}\n{drills}"
    assert with_drills(both, drills) == both
    assert with_matrix(both, newer) == f"{newer}\n{drills}"


def test_every_agent_and_every_drill_has_an_expectation() -> None:
    assert AGENTS.keys() == AGENT_TYPES.keys()
    assert set(DRILLS) == set(DRILL_COLUMNS)
    assert all(agent.expected(drill) for agent in AGENTS.values() for drill in DRILLS)


def test_document_says_of_every_agent_what_outlives_its_turns() -> None:
    assert LEAVING.keys() == AGENT_TYPES.keys()
    assert document_table() in (ROOT / "docs" / "operate" / "restarts.md").read_text(encoding="utf-8")
