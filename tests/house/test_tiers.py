"""The lists of ``tests/tiers.py`` name tests that exist."""

from __future__ import annotations

import pytest

from tests import tiers
from tests.services import ROOT
from tests.source_files import source_files

FILES = [path.relative_to(ROOT).as_posix() for path in source_files("tests")]


@pytest.mark.parametrize("start", [*tiers.ONLY_IN_ALL, *tiers.MAIN_ON_POSTGRESQL, *tiers.MAIN_BROWSER])
def test_every_path_in_a_tier_matches_a_test_file(start: str) -> None:
    assert any(file.startswith(start) for file in FILES)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        *(("drills", name) for name in tiers.MAIN_DRILLS),
        *(("docker", name) for name in tiers.MAIN_CONTAINERS),
    ],
)
def test_every_file_name_in_a_tier_exists(folder: str, name: str) -> None:
    assert f"tests/{folder}/{name}" in FILES
