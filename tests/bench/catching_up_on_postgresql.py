"""Figures as JSON, on a PostgreSQL of its own: ``python -m tests.bench.catching_up_on_postgresql COUNT [limited]``."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict

import django

from tests import postgresql
from tests.environment import DATABASE_URL  # with it: a data directory of its own, before there are settings


def main() -> None:
    """Measure and print."""
    server = postgresql.server()
    try:
        os.environ[DATABASE_URL] = server.new_database()
        django.setup()
        logging.disable(logging.WARNING)
        from tests.bench import catching_up, world  # noqa: PLC0415  (models want the settings above)

        count, *limited = sys.argv[1:]
        rows = catching_up.of_updates(world.World(), int(count), limited=bool(limited))
        print(json.dumps([asdict(row) for row in rows]))
    finally:
        server.close()


if __name__ == "__main__":
    main()
