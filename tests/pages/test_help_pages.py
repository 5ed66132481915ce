"""The help page explains every state with current pictures, and reveals nothing of other teams."""

from __future__ import annotations

import pytest
from django.test import Client

from sessions_app.kernel.rules.states import DerivedStatus, SessionState, TaskState
from sessions_app.pages.labels import DERIVED_STATUS_LABELS, OUTCOME_LABELS, TASK_STATE_LABELS
from sessions_app.pages.views.help_pages import HELP_PICTURES, glossary_sections
from sessions_app.sessions.rules.situation_facts import STATE_LABELS
from tests.pages.world import World

pytestmark = pytest.mark.any_database


def test_every_state_label_is_explained(ada: Client, world: World) -> None:
    html = ada.get("/help/").text
    for words, every in (
        (TASK_STATE_LABELS, TaskState),
        (STATE_LABELS, SessionState),
        (DERIVED_STATUS_LABELS, DerivedStatus),
    ):
        assert set(words) == set(every)
        for word in words.values():
            assert f">{word.text}</span></dt>" in html
    assert sum(len(part["rows"]) for part in glossary_sections()) == len(TaskState) + len(SessionState) + len(
        DerivedStatus
    ) + len(OUTCOME_LABELS)


def test_starting_point_is_shown_only_to_its_team(ada: Client, bob: Client, world: World) -> None:
    world.task("Begin here")
    assert "Begin here" in ada.get("/help/").text
    assert "Begin here" not in bob.get("/help/").text


def test_help_pictures_are_the_ones_taken_by_tests(ada: Client, world: World) -> None:
    html = ada.get("/help/").text
    shown = [name for name in HELP_PICTURES if f"/help/pictures/{name}.png" in html]
    assert {"board", "session-running", "session-after-a-restart", "sweeps"} <= set(shown)
    for name in shown:
        answer = ada.get(f"/help/pictures/{name}.png")
        assert answer.headers["Content-Type"] == "image/png"
        assert answer.content.startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["secret-key", "board.png", "..", "sweep"])
def test_no_other_file_is_served(name: str, ada: Client, world: World) -> None:
    assert ada.get(f"/help/pictures/{name}.png").status_code == 404
