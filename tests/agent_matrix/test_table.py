"""The matrix is a table whose cells are measured or empty, and names only agents that Kandev knows."""

from __future__ import annotations

import re

import pytest

from executors_app.plugins import agent_types
from tests.agent_matrix.table import COLUMNS, DOCUMENT, Row, matrix_document

pytestmark = pytest.mark.any_database


def test_what_was_not_measured_is_empty() -> None:
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
    assert f"| type | version | {' | '.join(COLUMNS)} |" in text
