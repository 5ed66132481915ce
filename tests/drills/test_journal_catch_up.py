"""What an agent says while no control plane runs is in the log afterwards: byte for byte, in order, once."""

from __future__ import annotations

import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.drills import chatty_agent
from tests.drills.deployment import ROOT, Deployment, Session
from tests.waiting import PATIENCE, eventually

UPDATES = 5_000
"""``make bench`` uses ten times as many."""


SMALL_LOG = 8 << 20
"""Twice the size at which SQLite copies its write-ahead log into the database."""


def start_chatty_session(deployment: Deployment, updates: int = UPDATES) -> Session:
    """Return a session whose agent sent that many updates while only its agentctl was running."""
    profile = {"agent_type": "custom_acp", "command": chatty_agent.command(), "env": {"PYTHONPATH": str(ROOT)}}
    deployment.serve()
    session = deployment.start_session(f"chatter {updates}", profile)
    session.wait_for("RUNNING")
    deployment.kill_server()
    (session.agent_home / chatty_agent.GO).touch()
    journal = deployment.data / "agentctl" / session.execution_id / "journal"
    eventually(lambda: chatty_agent.journal_ends(journal), timeout=60, describe="the journal has the end of the turn")
    return session


def check_caught_up(session: Session) -> None:
    """Wait until the log has the end of the turn."""
    eventually(lambda: "session.run.completed" in session.names(), timeout=60, describe="the event log has caught up")


@pytest.mark.any_database
def test_updates_sent_while_the_control_plane_is_down_all_arrive(deployment: Deployment) -> None:
    session = start_chatty_session(deployment)

    deployment.serve()

    check_caught_up(session)
    messages = chatty_agent.messages_from_events((event["name"], event["payload"]) for event in session.events())
    assert messages == chatty_agent.messages_from_updates(chatty_agent.updates(UPDATES))
    assert {"session.journal_gap", "session.journal_skipped"}.isdisjoint(session.names())
    assert session.names().count("session.run.started") == 1
    assert [row["state"] for row in session.prompts()] == ["done"]


@contextmanager
def reading(session: Session) -> Iterator[None]:
    """Follow the log from its beginning with a client that stops reading at once."""
    request = urllib.request.Request(
        f"{session.deployment.url}/api/v1/{session.path}/events/stream?after=0",
        headers={"Authorization": f"Token {session.deployment.seeded['token']}"},
    )
    with closing(urllib.request.urlopen(request, timeout=30)) as stream:
        assert stream.read(1)
        yield


@pytest.mark.embedded
def test_stalled_log_reader_does_not_grow_the_write_ahead_log(deployment: Deployment) -> None:
    session, database = start_chatty_session(deployment), deployment.data / "kandev.sqlite3"
    wal = database.with_name("kandev.sqlite3-wal")
    deployment.serve()
    with reading(session):
        check_caught_up(session)
        assert wal.stat().st_size < SMALL_LOG
        with closing(sqlite3.connect(database, timeout=PATIENCE)) as connection:
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy  # no read transaction is open
