"""What holds in every area."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest
from django.db import connection

# Shared test bodies: their failed assertions show values, as those of test modules do.
pytest.register_assert_rewrite(
    "tests.drills.restart_drills", "tests.executors.contract", "tests.executors.shared_worktrees"
)

# How long an example takes is a matter of what else the machine does.
hypothesis.settings.register_profile("house", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("house")


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> None:
    """A test may hold its transaction for long on a busy machine; no request and no supervisor does."""
    if connection.vendor == "postgresql":
        connection.settings_dict["OPTIONS"]["options"] += " -c idle_in_transaction_session_timeout=120000"


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """What is imported or called makes this process private (``private_files``); tests write as people do."""
    os.umask(0o022)
    yield
    os.umask(0o022)
