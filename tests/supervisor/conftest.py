"""A fixture for a runtime that records its requests."""

from __future__ import annotations

import pytest

from executors_app import plugins
from tests.supervisor.recording_runtime import RecordingRuntime


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> RecordingRuntime:
    """Install the runtime ``recording`` and return it."""
    made = RecordingRuntime()
    known = {**plugins.runtimes(), made.name: made}
    monkeypatch.setattr(plugins, "runtimes", lambda: known)
    return made
