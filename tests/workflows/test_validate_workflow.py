"""``manage.py validate_workflow``."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import call_command

from tests.services import ROOT
from tests.workflows.workflow_builder import TRIGGER, node, workflow

EXAMPLE = ROOT / "docs/examples/workflows/test-resumable-agent.yaml"


def test_valid_files_are_reported_with_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("validate_workflow", str(EXAMPLE))
    said = capsys.readouterr().out.splitlines()
    assert "test-resumable-agent.yaml:19: warning: node loop: the loop continues while “approved” is true" in said[0]
    assert said[1].endswith("test-resumable-agent.yaml: valid, 4 nodes")


def test_one_invalid_file_among_valid_ones_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.json"
    good.write_text(workflow([TRIGGER]))
    bad.write_text(workflow([node("a", "shel")]))
    with pytest.raises(SystemExit) as ended:
        call_command("validate_workflow", str(good), str(bad), str(tmp_path / "none.yaml"))
    said = capsys.readouterr().out
    assert ended.value.code == 2
    assert f"{good}: valid, 1 node" in said
    assert f"{bad}:7: error: node a: “shel” is not a node type [node_type] Did you mean “shell”?" in said
    assert "none.yaml: error: the file cannot be read" in said
