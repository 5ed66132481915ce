"""Sweeps avoid row-by-row updates and general HTTP clients, each of which costs more than the rest of the sweep."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.services import ROOT

SWEEP_MODULES = [
    *sorted((ROOT / "sessions_app" / "recovery" / "sweep").glob("*.py")),
    ROOT / "executors_app" / "machine" / "bulk_status.py",
]
SLOW_CLIENTS = {"aiohttp", "httpx", "requests", "urllib3"}


@pytest.mark.parametrize("path", SWEEP_MODULES, ids=lambda path: path.stem)
def test_sweep_modules_use_neither_bulk_update_nor_a_general_http_client(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not called & {"bulk_update", "abulk_update"}
    named = [node.names[0].name for node in ast.walk(tree) if isinstance(node, ast.Import)]
    named += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not {name.partition(".")[0] for name in named} & SLOW_CLIENTS


def test_sweep_modules_exist() -> None:
    assert len(SWEEP_MODULES) == 4
    assert all(path.exists() for path in SWEEP_MODULES)
