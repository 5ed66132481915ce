"""The objects a user may see are defined in one place, with which pages, API and sockets begin every query."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from django.apps import apps

from sessions_app.accounts.team_scope import TeamModel
from tests.services import ROOT

TOPICS: Final = sorted(path.name for path in (ROOT / "sessions_app").iterdir() if (path / "__init__.py").exists())
FRONT: Final = (
    *("api", "pages", "stream/live", "stream/consumers.py", "stream/socket_actions.py", "workspace/consumers.py"),
    *(f"{topic}/{part}" for topic in TOPICS for part in ("api", "forms", "views")),
)
"""Where requests arrive (the admin is for staff, who see every team)."""
OF_TEAMS: Final = {model.__name__ for model in apps.get_models() if issubclass(model, TeamModel)} | {
    "AgentProfile",
    "ExecutorRunning",
    "MessagePart",
}
NARROWS: Final = {"visible_to", "none"}

ALLOWED: Final = {
    ("board/views/board.py", "TaskSession"): "prefetched for tasks that are the user's",
    ("stream/views.py", "Message"): "by the ids of messages that were found before",
    ("stream/views.py", "MessagePart"): "by the ids of messages that were found before",
    ("stream/api/views.py", "MessagePart"): "counted for messages of a session that is the user's",
    ("stream/live/hub.py", "SessionEvent"): "of sessions that somebody was let in to",
    ("stream/live/hub.py", "TaskSession"): "of tasks that somebody was let in to",
    ("stream/live/authentication.py", "Task"): "asks for all seats at once who may still sit there",
    ("stream/live/authentication.py", "TaskSession"): "asks for all seats at once who may still sit there",
    ("sessions/api/serializers.py", "AgentProfile"): "a name for the schema: get_queryset() narrows",
    ("sessions/api/serializers.py", "TaskSession"): "a name for the schema: get_queryset() has those of the task",
    ("workflows/api/serializers.py", "AgentProfile"): "a name for the schema: validate_agent_profile() narrows",
    ("agents/api/views.py", "AgentProfile"): "made by staff",
}


def files() -> list[Path]:
    front = (ROOT / "sessions_app" / name for name in FRONT)
    places = [place for place in front if place.exists() or place.with_suffix(".py").exists()]
    return [path for place in places for path in (sorted(place.rglob("*.py")) or [place.with_suffix(".py")])]


def unscoped_queries(path: Path) -> Iterator[str]:
    """Yield the models of teams that a file queries without narrowing them to the user's teams."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute) or node.attr in NARROWS:
            continue
        manager = node.value
        if isinstance(manager, ast.Attribute) and manager.attr in {"objects", "_default_manager", "_base_manager"}:
            model = manager.value
            if isinstance(model, ast.Name) and model.id in OF_TEAMS:
                yield model.id


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT / "sessions_app").as_posix())
def test_every_query_for_team_objects_uses_visible_to(path: Path) -> None:
    name = path.relative_to(ROOT / "sessions_app").as_posix()
    unscoped = {model for model in unscoped_queries(path) if (name, model) not in ALLOWED}
    assert not unscoped, f"start with .visible_to(user) in {name}"


def test_membership_is_queried_in_one_place() -> None:
    asks = {path.name for path in files() if ".groups" in path.read_text()}
    assert asks == set()
