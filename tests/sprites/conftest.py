"""A stand-in of the Sprites API, its sprites' disks, and the runtime on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from executors_app.sprites import organisation
from tests.drills.conftest import pytest_runtest_makereport  # noqa: F401 - a hook
from tests.executors.repositories import make_repository
from tests.sprites.fake_api import TOKEN, StandIn
from tests.sprites.harness import SpritesPlace


@pytest.fixture
def stand_in(settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    made = StandIn()
    monkeypatch.setattr(organisation, "ROOT_PATH", PurePosixPath(tmp_path / "sprites"))
    monkeypatch.setattr(organisation, "HOLD_SOCKET", PurePosixPath(made.socket))
    with made.serving():
        settings.KANDEV_SPRITES_URL, settings.KANDEV_SPRITES_TOKEN = made.url, TOKEN
        yield made


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


@pytest.fixture
def place(repository: Path, stand_in: StandIn, tmp_path: Path) -> SpritesPlace:
    return SpritesPlace(repository, stand_in, tmp_path / "sprites")
