"""Claim and prepare a start in one transaction: where agentctl is up already, nothing lies between the two."""

from __future__ import annotations

import uuid

from django.db import Error

from sessions_app.models import Lease, LeaseLost, writing
from sessions_app.supervisor.rows import BESIDE
from sessions_app.supervisor.start import agent_order, planning
from sessions_app.supervisor.start.agent_order import AgentOrder
from sessions_app.supervisor.start.planning import Plan


def claim_and_prepare(
    session_id: uuid.UUID,
    intent_id: uuid.UUID,
    lease: Lease,
    *,
    lives: str,
    found: str | None,
    in_grace: bool = False,
) -> tuple[Plan, AgentOrder | None] | None:
    """``planning.claim`` under a lease that is held, and ``agent_order.prepare``; None where there is no claim.

    A start that cannot be prepared is counted all the same (rule 33): it is claimed by itself then.
    """
    try:
        with writing(session_id, lease, beside=BESIDE) as draft:
            plan = planning.claim_within(draft, intent_id, lease, lives=lives, in_grace=in_grace)
            return None if plan is None else (plan, agent_order.prepare_within(draft, plan, found=found))
    except (LeaseLost, Error):
        raise
    except Exception:  # noqa: BLE001  (it comes again, from the one that it belongs to)
        plan = planning.claim(session_id, intent_id, lease.owner, lives=lives, held=lease, in_grace=in_grace)
        return None if plan is None else (plan, agent_order.prepare(plan, lease, found=found))
