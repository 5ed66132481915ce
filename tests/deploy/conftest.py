"""Fixtures of the deployment tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.deployment import Deployment


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A deployment with data; its processes are not running."""
    deployment = Deployment(tmp_path)
    deployment.prepare()
    yield deployment
    deployment.close()
