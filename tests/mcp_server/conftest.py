from __future__ import annotations

import pytest

from tests.api.world import World, make_world


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def served_world(transactional_db: None) -> World:
    """Return API objects whose rows other threads can see."""
    return make_world()
