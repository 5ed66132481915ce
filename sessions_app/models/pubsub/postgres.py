"""Wake-ups over PostgreSQL: writers NOTIFY, waiting processes LISTEN."""

from __future__ import annotations

import select
from contextlib import closing
from typing import Any, Final

from django.db import Error, connection, connections

from sessions_app.models.pubsub.base import PubSub, Relay

CHANNEL: Final = "kandev_wakeups"
CHECK_EVERY: Final = 30.0
"""Seconds without traffic after which the connection is checked."""
_NOTIFY: Final = "SELECT pg_notify(%s, %s)"


class PostgresPubSub(PubSub):
    """LISTEN on the relay's own connection; without a relay, NOTIFY on the connection that wrote."""

    errors = (Error, OSError)

    def tell(self, here: str) -> None:
        """NOTIFY on this thread's connection."""
        with connection.cursor() as cursor:
            cursor.execute(_NOTIFY, (CHANNEL, here))

    def serve(self, relay: Relay) -> None:
        """LISTEN, and NOTIFY for the relay."""
        with connections["default"].wrap_database_errors, closing(_own_connection()) as session:
            session.add_notify_handler(lambda notify: relay.note(notify.payload))
            session.execute("SET synchronous_commit TO off")  # it writes nothing that must survive a crash
            session.execute(f"LISTEN {CHANNEL}")
            # Wake-ups that were sent before LISTEN are lost, so act as if one had arrived.
            relay.hear()
            while not relay.is_over:
                select.select([session, relay.ear], [], [], CHECK_EVERY)
                # The driver calls the handler only while it executes a statement, so execute one in either case.
                if relay.wait_for_request():
                    session.execute(_NOTIFY, (CHANNEL, relay.here))
                else:
                    session.execute("SELECT 1")


def _own_connection() -> Any:
    """Open a connection for this thread with Django's settings."""
    database = connections["default"]
    session = database.get_new_connection(database.get_connection_params())
    session.autocommit = True
    return session
