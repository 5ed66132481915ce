"""A resume beside a live agentctl is claimed and prepared in one transaction, with the same guarantees."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.utils import timezone

from sessions_app.models import AGENT_AWAITED_SINCE, Intent
from sessions_app.starts import agent_start
from sessions_app.starts.execution import claim_and_prepare
from tests.supervisor import database_dump
from tests.supervisor.rows import MINE, execution_of, fresh
from tests.supervisor.start_claims import session_without_agent

pytestmark = pytest.mark.django_db
READS = 24
"""The maximum for a whole resume; each query delays it by half a millisecond."""


def test_claim_and_prepare_in_one_transaction_equals_two_steps() -> None:
    session = session_without_agent()
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})
    claim_start = claim_and_prepare(session.id, intent.id, MINE, running_launch_id="", found=None)
    assert claim_start is not None
    plan, order = claim_start
    assert order is not None
    intent.refresh_from_db()
    assert (plan.lease, intent.claimed_generation) == (MINE, MINE.generation)
    awaited_since = datetime.fromisoformat(intent.payload.pop(AGENT_AWAITED_SINCE))
    assert awaited_since <= timezone.now()
    assert intent.payload == {"mode": "auto", "strategy": order.strategy, "mcp_servers": {}}
    assert (fresh(session).state, fresh(session).start_attempts) == ("STARTING", 1)


def test_start_that_cannot_be_prepared_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_without_agent()
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(agent_start, "_build_request", fail)
    with pytest.raises(ZeroDivisionError):
        claim_and_prepare(session.id, intent.id, MINE, running_launch_id="", found=None)
    intent.refresh_from_db()
    assert intent.claimed_generation == MINE.generation
    assert fresh(session).start_attempts == 1


def test_start_that_is_no_longer_wanted_is_not_prepared() -> None:
    session = session_without_agent(desired_state="stopped")
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})
    assert claim_and_prepare(session.id, intent.id, MINE, running_launch_id="", found=None) is None
    assert session.intents.latest("created_at").outcome == "stopped"


def test_resume_needs_few_queries() -> None:
    session = session_without_agent()
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})
    with database_dump.counting() as queries_alone:
        claim_start = claim_and_prepare(session.id, intent.id, MINE, running_launch_id="", found=None)
        assert claim_start is not None
        plan, order = claim_start
        assert order is not None
    answer = {"outcome": "loaded", "replayed": 2, "replayed_user_texts": ["write the parser"]}
    known = agent_start.load_conversation_facts(plan.session_id)
    with database_dump.counting() as queries_together:
        assert agent_start.write_agent_started(plan, plan.lease, order, answer, known)
    queries = [query["sql"] for query in (*queries_alone.captured_queries, *queries_together.captured_queries)]
    reads = [sql for sql in queries if sql.startswith("SELECT")]
    assert len(reads) <= READS, reads
    assert execution_of(session).resume_token == order.token_before
