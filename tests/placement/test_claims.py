"""Whether a start is for the supervisor that asks, as a table."""

from __future__ import annotations

import pytest

from sessions_app.placement.rules.claims import (
    NO_SUPERVISOR,
    OF_OTHERS,
    OURS,
    ClaimDecision,
    HostFacts,
    StartFacts,
    decide_claim,
    describe_missing_repository,
)

HERE, THERE = 1, 2
NOWHERE = ClaimDecision(is_ours=False, waits_for=describe_missing_repository("/srv/app"))
UNATTENDED = ClaimDecision(is_ours=False, waits_for=NO_SUPERVISOR)


@pytest.mark.parametrize(
    ("executor_host", "is_here", "others", "decision"),
    [
        (None, True, {}, OURS),
        (None, True, {THERE: True}, OURS),
        (None, None, {THERE: True}, OURS),
        (None, False, {THERE: True}, OF_OTHERS),
        (None, False, {THERE: None}, OF_OTHERS),
        (None, False, {THERE: False}, NOWHERE),
        (None, False, {}, NOWHERE),
        (HERE, True, {THERE: True}, OURS),
        (HERE, None, {}, OURS),
        (HERE, False, {THERE: True}, NOWHERE),
        (THERE, True, {THERE: True}, OF_OTHERS),
        (THERE, True, {THERE: None}, OF_OTHERS),
        (THERE, True, {THERE: False}, NOWHERE),
        (THERE, True, {}, UNATTENDED),
        (3, True, {THERE: True}, UNATTENDED),
    ],
)
def test_start_is_claimed_on_a_host_of_its_executor_with_the_repository(
    executor_host: int | None, is_here: bool | None, others: dict[int, bool | None], decision: ClaimDecision
) -> None:
    hosts = [HostFacts(host, has) for host, has in others.items()]
    assert decide_claim(StartFacts(HERE, is_here, executor_host, hosts, "/srv/app")) == decision


def test_supervisor_that_has_not_reported_takes_no_start_of_a_host() -> None:
    facts = StartFacts(None, True, HERE, [], "/srv/app")
    assert decide_claim(facts) == UNATTENDED
    assert decide_claim(StartFacts(None, True, None, [], "/srv/app")) == OURS
