"""A pytest plugin, loaded before Django's settings: tests have a data directory of their own.

Nothing that the caller's shell says about Kandev reaches them but ``KANDEV_REQUIRE_SERVICES``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

REQUIRE_SERVICES = "KANDEV_REQUIRE_SERVICES"


def _isolate() -> None:
    for name in [name for name in os.environ if name.startswith("KANDEV_") and name != REQUIRE_SERVICES]:
        del os.environ[name]
    directory = tempfile.mkdtemp(prefix="kandev-tests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.environ["KANDEV_DATA_DIR"] = directory
    os.environ["DJANGO_SETTINGS_MODULE"] = "kandev.settings"


_isolate()
