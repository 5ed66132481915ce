"""JSON log lines: one object each, with session, task, execution and sweep where known."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import uuid
from typing import Any

import pytest

from kandev.log_format import ContextFilter, JsonFormatter, LoginSecretFilter
from sessions_app.kernel import actor_context
from sessions_app.kernel.database_threads import DatabaseThread

ID, OTHER = str(uuid.uuid4()), str(uuid.uuid4())


def line(text: str, *arguments: object, **extra: object) -> dict[str, Any]:
    """Log a message; return its JSON object."""
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, text, arguments, None, extra=extra)
    ContextFilter().filter(record)
    LoginSecretFilter().filter(record)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize(
    ("text", "arguments", "known"),
    [
        ("session %s: its stream ended: %s", (uuid.UUID(ID), "no"), {"session_id": ID}),
        ("100%% of %d: session %s of task %s", (3, ID, OTHER), {"session_id": ID, "task_id": OTHER}),
        ("%s of session %s cannot be written", ("the record", ID), {"session_id": ID}),
        ("session %s", ("no id\nat all",), {}),
        ("session %s and session %s", (ID,), {"session_id": ID}),
        ("nothing", (), {}),
    ],
)
def test_session_named_in_a_message_is_a_field(text: str, arguments: tuple[Any, ...], known: Any) -> None:
    record = logging.makeLogRecord({"msg": text, "args": arguments})
    ContextFilter().filter(record)
    assert {name: value for name, value in vars(record).items() if name.endswith("_id")} == known


def test_context_is_in_every_line_and_explicit_fields_win() -> None:
    with actor_context.acting_as(owner="boot", cause="boot sweep", sweep_id=OTHER, session_id=OTHER):
        formatted = line("session %s: %s", ID, "multi\nline", seq=7)
        own = line("hello", session_id="mine")
    assert (formatted["session_id"], formatted["sweep_id"], formatted["cause"], formatted["owner"]) == (
        ID,
        OTHER,
        "boot sweep",
        "boot",
    )
    assert (formatted["seq"], formatted["message"]) == (7, f"session {ID}: multi\nline")
    assert own["session_id"] == "mine"
    assert "sweep_id" not in line("later")


def test_login_secret_is_in_no_line() -> None:
    assert "s3cr3t" not in json.dumps(line("Not Found: %s", "/login/s3cr3t/"))
    try:
        raise ValueError("/login/s3cr3t/ is no path")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    assert "s3cr3t" not in JsonFormatter().format(record)


async def test_context_reaches_started_threads_and_tasks_and_nothing_else() -> None:
    thread = DatabaseThread("test")
    try:
        with actor_context.acting_as(owner="boot", sweep_id=OTHER):
            assert await thread(actor_context.current_context) == {"owner": "boot", "sweep_id": OTHER}
            task = asyncio.create_task(_begin())
        assert await task == {"owner": "boot", "cause": "journal"}
        assert await thread(actor_context.current_context) == {} == actor_context.current_context()
    finally:
        thread.close()


async def _begin() -> actor_context.ActorContext:
    actor_context.begin_context(cause="journal")
    return actor_context.current_context()
