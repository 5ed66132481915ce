"""Running single chores, and sessions that ended long ago."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
from django.utils import timezone

from executors_app.repositories.workspace_store import state_directory_of
from sessions_app.maintenance.chore_run import ChoreRun
from sessions_app.maintenance.chores import run_chores
from sessions_app.models import TaskSession
from tests.supervisor.rows import change, execution_of, running_session

LONG_AGO = timezone.now() - timedelta(days=400)
EPOCH = "epoch-1"


def run_chore(chore: str, *, dry_run: bool = False) -> ChoreRun:
    """Run one chore; return its run."""
    (work,) = run_chores([chore], dry_run=dry_run)
    return work


def closed_session(prompt: str = "", **fields: Any) -> TaskSession:
    """Return a session that was completed long ago and has no process."""
    session = running_session(prompt)
    session.intents.update(done_at=LONG_AGO)
    change(execution_of(session), status="stopped", owner="", updated_at=LONG_AGO)
    return change(session, state="COMPLETED", launch_id="", updated_at=LONG_AGO, **fields)


def ended_session(prompt: str = "", **fields: Any) -> TaskSession:
    """Return a session that was stopped long ago and can be resumed; its task is open."""
    session = closed_session(prompt)
    return change(session, state="WAITING_FOR_INPUT", desired_state="stopped", updated_at=LONG_AGO, **fields)


def with_journal(session: TaskSession, lines: int = 3, read: int = 3, epoch: str = EPOCH) -> Path:
    """Return a state directory such as a dead agentctl leaves, with ``read`` lines in the log."""
    execution = change(execution_of(session), journal_epoch=EPOCH, journal_seq=read)
    if session.state == "COMPLETED":
        change(execution, updated_at=LONG_AGO)
    place = state_directory_of(str(execution.id))
    place.create()
    place.lock_file.touch()
    journal = place.path / "journal"
    journal.mkdir()
    (journal / "meta.json").write_bytes(orjson.dumps({"epoch": epoch, "boot_id": "b"}))
    journal_lines = [{"seq": seq, "epoch": epoch, "ts": 1.0, "kind": "x"} for seq in range(1, lines + 1)]
    (journal / f"{1:020d}.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in journal_lines))
    return place.path
