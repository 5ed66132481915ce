"""Deployments for drills: prepared once, copied for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.deployment import Deployment


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A Kandev of its own, prepared and not yet served."""
    made = Deployment(tmp_path)
    made.prepare()
    yield made
    made.close()
