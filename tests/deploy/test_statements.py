"""PostgreSQL statements of web requests have a time limit; those of commands have none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from django.db import DataError, OperationalError

from sessions_app.kernel.database_errors import DATABASE_BUSY, classify_error
from tests import postgresql
from tests.environment import DATABASE_URL
from tests.services import ROOT

pytestmark = pytest.mark.postgresql
SHOW = """
import {module}
import django
django.setup()
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SHOW statement_timeout")
    print(cursor.fetchone()[0])
"""


@pytest.mark.parametrize(("module", "expected"), [("kandev.asgi", "30s"), ("kandev.settings", "0")])
def test_statement_timeout_depends_on_the_kind_of_process(tmp_path: Path, module: str, expected: str) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "KANDEV_DATA_DIR": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "kandev.settings",
        DATABASE_URL: postgresql.server().new_database(),
    }
    command = [sys.executable, "-c", SHOW.format(module=module)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


def test_statement_timeout_is_reported_as_a_busy_database() -> None:
    session = psycopg.connect(postgresql.server().url(), options="-c statement_timeout=1")
    with session, pytest.raises(psycopg.errors.QueryCanceled) as cancelled:
        session.execute("SELECT pg_sleep(60)")
    error = OperationalError("canceling statement due to statement timeout")
    error.__cause__ = cancelled.value
    assert classify_error(error) is DATABASE_BUSY
    assert classify_error(DataError("another one")) is None
