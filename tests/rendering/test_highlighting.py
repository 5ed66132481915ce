"""Highlighting a file of a workspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from sessions_app.confined.client import ConfinedPool
from sessions_app.models import TaskSession
from sessions_app.rendering import services as text_rendering
from sessions_app.rendering.services import FILE_LIMITS, highlight_workspace_file
from tests.growth import measure_growth
from tests.pages.world import World

HOSTILE_FILES: Final[dict[str, Callable[[int], str]]] = {
    "a.c": lambda size: "\n" * size,
    "b.c": lambda size: "/*\\\n" * (size // 4),
    "a.hs": lambda size: "{-" * (size // 2),
    "a.py": lambda size: "f'{" * (size // 3),
    "a.sql": lambda size: "select\n" * (size // 7),
    "a.html": lambda size: "<a " * (size // 3),
    "a.yaml": lambda size: " - " * (size // 3),
    "a.md": lambda size: "*_`[" * (size // 4),
}


@pytest.fixture
def session(world: World) -> TaskSession:
    return world.session()


@pytest.mark.any_database
@pytest.mark.parametrize("path", HOSTILE_FILES)
def test_cost_of_a_file_is_bounded(path: str, session: TaskSession) -> None:
    def show(code: str) -> None:
        highlight_workspace_file(session, code, path)

    sizes = (6_000, 12_000, 25_000, 50_000, 100_000)
    measure_growth(show, HOSTILE_FILES[path], sizes=sizes).assert_bounded(budget=FILE_LIMITS.cpu_seconds + 0.5)


def test_file_is_highlighted_by_its_name(session: TaskSession) -> None:
    assert '<span class="k">return</span>' in (highlight_workspace_file(session, "return 1", "src/a.py") or "")
    assert highlight_workspace_file(session, "<b>", "a.unknown") == "&lt;b&gt;"


def test_expensive_file_has_no_html(session: TaskSession) -> None:
    assert highlight_workspace_file(session, "\n" * 100_000, "a.c") is None


def test_file_has_no_html_without_a_pool(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rendering, "TEXT_POOL", ConfinedPool("tests.confined.nothing"))
    assert highlight_workspace_file(session, "return 1", "a.py") is None
