"""A few of the drills that ``make agent-drills`` runs with every agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent_matrix.drilled_agents import run_drills, surprises
from tests.agent_matrix.table import DRILL_COLUMNS
from tests.services import require


@pytest.mark.real_agent
@pytest.mark.parametrize(
    ("name", "drills"),
    [
        ("codex-acp", DRILL_COLUMNS),
        ("claude-agent-acp", ("question",)),
        ("qwen-code", ("lost store",)),  # it claims to have a conversation that is lost
    ],
)
def test_agent_behaves_as_expected_in_drills(name: str, drills: tuple[str, ...], tmp_path: Path) -> None:
    require(name)
    row = run_drills(name, tmp_path, drills)
    assert surprises([row], drills) == []
