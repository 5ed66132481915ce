"""Liveness probe of a supervisor or a worker: ``python3 -P kandev/liveness.py [SECONDS]``; loads no settings.

Exits with status 1 if the process has not touched ``KANDEV_BEAT_PATH`` for SECONDS although its database answers.
Without the database nothing is known: a process that waits for it is as good as any other, and no restart would help.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

LIMIT = 120.0
"""Seconds for which a process may touch nothing. Far more than a lease: another process has taken over long ago."""
ANSWERS_WITHIN = 8.0
"""Seconds in which a database has to answer; a server that hangs accepts connections and never does."""


def main() -> int:
    """Return the status, and say on the standard error why it is not 0."""
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else LIMIT
    seconds = beat_age(Path(os.environ["KANDEV_BEAT_PATH"]))
    if seconds is not None and seconds <= limit:
        return 0
    url = read_database_url()
    if url is None or not database_answers(url):
        return 0
    since = "since its start" if seconds is None else f"for {seconds:.0f} s"
    sys.stderr.write(f"The process has done nothing {since}, although its database answers.\n")
    return 1


def beat_age(path: Path) -> float | None:
    """Return the seconds since the file was touched, also if the clock was set back since; None if there is no file."""
    try:
        return abs(time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return None


def read_database_url() -> str | None:
    """Return the URL of the database, from the variable or from the file that the variable names.

    None if that file cannot be read now: a restarted process could not read it either.
    """
    file = os.environ.get("KANDEV_DATABASE_URL_FILE")
    if file:
        try:
            return Path(file).read_text().strip()
        except OSError:
            return None
    return os.environ.get("KANDEV_DATABASE_URL", "")


def database_answers(url: str) -> bool:
    """Return whether a PostgreSQL server answers. An embedded database always does: its errors come at once."""
    if not url.startswith(("postgres:", "postgresql:")):
        return True
    answered = threading.Event()
    thread = threading.Thread(target=_ask, args=(url, answered), daemon=True)
    thread.start()
    thread.join(ANSWERS_WITHIN)
    return answered.is_set()


def _ask(url: str, answered: threading.Event) -> None:
    import psycopg  # noqa: PLC0415 - rarely needed, and it takes longer than everything else

    with suppress(psycopg.Error), psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
        connection.execute("SELECT 1")
        answered.set()


if __name__ == "__main__":
    sys.exit(main())
