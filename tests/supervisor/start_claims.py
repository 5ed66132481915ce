"""Starts as the supervisor claims and records them, for sessions whose agent has exited."""

from __future__ import annotations

from typing import Any

from sessions_app.models import Intent, Prompt, TaskSession
from sessions_app.starts import agent_start, claims
from sessions_app.starts.claims import StartClaim
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, change, running_session


def try_claim(session: TaskSession, mode: str = "auto", by: Any = None) -> StartClaim | None:
    """Claim the open start of a session, or a new one; return None if it is refused."""
    intent = session.intents.filter(kind="start", done_at=None).first() or Intent.objects.create(
        session=session, kind="start", payload={"mode": mode}, by=by
    )
    return claims.claim_start(session.id, intent.id, MINE.owner, running_launch_id=None)


def claim_start(session: TaskSession, mode: str = "auto") -> StartClaim:
    """Claim a start, which must succeed."""
    plan = try_claim(session, mode)
    assert plan is not None
    return plan


def answer_start(session: TaskSession, **answer: Any) -> bool:
    """Claim a start and record the agent's answer to it; return whether it counted."""
    plan = claim_start(session)
    order = agent_start.prepare_agent_start(plan, plan.lease, found="")
    assert order is not None
    return agent_start.write_agent_started(
        plan,
        plan.lease,
        order,
        {"outcome": "loaded", "replayed": 0, **answer},
        agent_start.load_conversation_facts(plan.session_id),
    )


def session_without_agent(**fields: Any) -> TaskSession:
    """Return a session with one completed turn whose agent has exited."""
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write the parser", state="sending")
    ingest(session, [*journal.turn_begins("p1"), journal.completes("p1"), journal.exits()])
    return change(session, **fields)
