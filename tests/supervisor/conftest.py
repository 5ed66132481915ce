"""A runtime that records what it is asked."""

from __future__ import annotations

import pytest

from executors_app import plugins
from tests.supervisor.places import AsTold


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> AsTold:
    """The runtime ``as_told``."""
    made = AsTold()
    known = {**plugins.runtimes(), made.name: made}
    monkeypatch.setattr(plugins, "runtimes", lambda: known)
    return made
