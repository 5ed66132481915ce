"""The acceptance cases of other loop engines in memory; ``test_real_runs`` runs them with a real supervisor."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.workflows.acceptance_cases import CASES
from tests.workflows.memory_runs import drive


@pytest.mark.parametrize("name", CASES)
def test_acceptance_case_has_expected_results(name: str, tmp_path: Path) -> None:
    assert shutil.which("sh")
    case = CASES[name]
    run = drive(case.text, cwd=tmp_path)
    assert run.outcome.succeeded is case.succeeds, run.outcome.error
    for path, outputs in case.outputs.items():
        assert outputs.items() <= run[path].outputs.items(), path
    for path, words in case.errors.items():
        assert words in (run[path].error if path else run.outcome.error)
    assert not run.paths & set(case.not_run)
