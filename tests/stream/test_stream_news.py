"""What a commit of journal lines means for others, and that nobody misses it."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.agentctl_client.streams import EventStream
from executors_app.wire.errors import AgentctlUnreachable
from sessions_app.journal import news_of
from sessions_app.recovery.rules.verification import MEMORY_CHECK_PREFIX
from sessions_app.stream.stream_news import News
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.journals import Journal
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import RecordingListener, with_registry
from tests.supervisor.rows import NO_LEASE, running_session

WORK, SNAPSHOT, ENDED, COMPLETED, GONE = (
    News.WORK_DUE,
    News.SNAPSHOT_TAKEN,
    News.TURN_ENDED,
    News.TURN_COMPLETED,
    News.AGENT_GONE,
)
OUTPUT = {"kind": "message.agent", "text": "Working"}
CHECK = {"kind": "turn.completed", "message_id": f"{MEMORY_CHECK_PREFIX}1"}


@pytest.mark.parametrize(
    ("lines", "agent_gone", "news"),
    [
        ([OUTPUT], False, []),
        ([OUTPUT, {"kind": "log"}], False, [WORK]),
        ([{"kind": "workspace.snapshot"}], False, [WORK, SNAPSHOT]),
        ([OUTPUT, {"kind": "turn.completed", "message_id": "p1"}], False, [WORK, ENDED, COMPLETED]),
        ([{"kind": "turn.failed", "message_id": "p1"}], False, [WORK, ENDED]),
        ([CHECK], False, [WORK, ENDED]),
        ([{"kind": "agent.exited"}], True, [WORK, GONE]),
        ([{"kind": "agent.exited", "expected": True}], False, [WORK]),
    ],
)
def test_news_of_committed_lines(lines: list[dict[str, Any]], agent_gone: bool, news: list[News]) -> None:
    assert news_of(lines, agent_gone=agent_gone) == news


@pytest.mark.django_db(transaction=True)
def test_news_arrive_even_if_the_acknowledgement_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    session, journal = running_session(execution=NO_LEASE), Journal()
    listener = RecordingListener()

    async def lose_connection(*_: object, **__: object) -> None:
        raise AgentctlUnreachable("The connection is gone.", reason="connection")

    async def attach(registry: ExecutionRegistry) -> None:
        assert await registry.open_stream(session.id) is not None

    monkeypatch.setattr(EventStream, "ack", lose_connection)
    with recording_agentctl(session, [journal.line("log"), journal.exits()]):
        with_registry(attach, listener)
    assert listener.news == [WORK, GONE]
