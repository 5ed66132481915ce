"""A pytest plugin: let many test runs share one migrated database, because a migration takes longer than most tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from tests.environment import RUN_DIRECTORY
from tests.migrated_database import MIGRATED_FILE

SHARED_DIRECTORY: Final = "MUTATIONS_SHARED_DIRECTORY"
"""Environment variable with the directory of the shared copy. The first run with a database writes it."""


def pytest_configure() -> None:
    """Use the shared database, if there is one."""
    if (shared := _shared()).exists():
        shutil.copyfile(shared, _own())


def pytest_sessionfinish() -> None:
    """Share the database of this run, if it migrated one."""
    if _own().exists() and not _shared().exists():
        incomplete = _shared().with_suffix(f".{os.getpid()}")
        shutil.copyfile(_own(), incomplete)
        incomplete.rename(_shared())


def _shared() -> Path:
    return Path(os.environ[SHARED_DIRECTORY], MIGRATED_FILE)


def _own() -> Path:
    return Path(os.environ[RUN_DIRECTORY], MIGRATED_FILE)
