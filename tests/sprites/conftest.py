"""A fake Sprites API, the disks of its sprites, and the runtime under test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from executors_app.runtimes.sprites import organisation
from tests.drills.conftest import pytest_runtest_makereport  # noqa: F401 - a hook
from tests.executors.repositories import make_repository
from tests.sprites.fake_api import TOKEN, FakeSpritesApi
from tests.sprites.harness import SpritesHarness


@pytest.fixture
def sprites_api(settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeSpritesApi]:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    made = FakeSpritesApi()
    monkeypatch.setattr(organisation, "ROOT_PATH", PurePosixPath(tmp_path / "sprites"))
    monkeypatch.setattr(organisation, "HOLD_SOCKET", PurePosixPath(made.socket))
    with made.serving():
        settings.KANDEV_SPRITES_URL, settings.KANDEV_SPRITES_TOKEN = made.url, TOKEN
        yield made


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


@pytest.fixture
def harness(repository: Path, sprites_api: FakeSpritesApi, tmp_path: Path) -> SpritesHarness:
    return SpritesHarness(repository, sprites_api, tmp_path / "sprites")
