"""A start on an executor that does not answer: the session stays *unreachable*, whatever is requested meanwhile."""

from __future__ import annotations

import pytest

from sessions_app.sessions.services.status import session_status
from sessions_app.starts.outcomes import StartFailure, write_start_failure
from tests.supervisor.rows import change, execution_of, fresh
from tests.supervisor.start_claims import claim_start, session_without_agent

pytestmark = pytest.mark.django_db

UNREACHABLE = {"error_code": "unreachable", "error_message": "It does not answer."}


@pytest.mark.parametrize(
    ("failed", "shown"),
    [
        ("runtime_unavailable", "unreachable"),
        ("agentctl_unreachable", "unreachable"),
        ("launch_failed", "launch_failed"),
        ("worktree_missing", "worktree_missing"),
    ],
)
def test_failed_start_of_an_unreachable_session_keeps_the_right_error(failed: str, shown: str) -> None:
    session = session_without_agent(state="ERROR", **UNREACHABLE)
    change(execution_of(session), status="error", **UNREACHABLE)
    plan = claim_start(session)
    status = session_status(fresh(session))
    assert (status["state"], status["error_code"]) == ("STARTING", "unreachable")

    failure = StartFailure(failed, "The remote host: agentctl did not answer in time.", executor_failed=True)
    write_start_failure(session.id, plan.intent_id, plan.lease, failure)
    assert (fresh(session).error_code, execution_of(session).error_code) == (shown, shown)
    assert session.receipts.latest("created_at").reason == failed


def test_start_after_another_error_clears_it() -> None:
    session = session_without_agent(state="ERROR", error_code="launch_failed", error_message="boom")
    claim_start(session)
    assert (fresh(session).state, fresh(session).error_code) == ("STARTING", "")
