"""The derived status of a session."""

from __future__ import annotations

from itertools import product

import pytest

from sessions_app.kernel.rules.states import DerivedStatus, RunFacts, RunState, derive_status
from sessions_app.waits.rules.wait_keys import WaitKeyState

R = RunState
R_OPEN = {R.RUNNING, R.WAITING}
UNUSABLE = {None, WaitKeyState.EXPIRED, WaitKeyState.REVOKED}
ALL_RUNS = [
    RunFacts(state, waited, process_gone, ended_by_user, token)
    for state, waited, process_gone, ended_by_user, token in product(R, *[(False, True)] * 3, (None, *WaitKeyState))
]


def expected_status(run: RunFacts) -> str:
    """Return the status by rule 29, sentence by sentence, independently of the implementation."""
    holds = {
        "interrupted_startup": (run.state in R_OPEN and run.process_gone)
        or (run.state == R.INTERRUPTED and not run.waited and not run.ended_by_user),
        "interrupted_waiting": (run.state == R.WAITING and run.token in UNUSABLE)
        or (run.state == R.INTERRUPTED and run.waited and not run.ended_by_user),
        "waiting": run.state == R.WAITING,
        "running": run.state in R_OPEN,
        "idle": True,
    }
    return next(status for status in DerivedStatus if holds[status])


def test_status_of_every_possible_run_follows_the_rules() -> None:
    assert len(ALL_RUNS) == 6 * 2 * 2 * 2 * 5
    wrong = {
        run: (derive_status(run), expected_status(run))
        for run in ALL_RUNS
        if derive_status(run) != expected_status(run)
    }
    assert wrong == {}
    assert {derive_status(run) for run in ALL_RUNS} == set(DerivedStatus), "every status occurs"


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (None, "idle"),
        (RunFacts(R.RUNNING), "running"),
        (RunFacts(R.RUNNING, process_gone=True), "interrupted_startup"),
        (RunFacts(R.WAITING, waited=True), "waiting"),
        (RunFacts(R.WAITING, waited=True, token=WaitKeyState.CONSUMED), "waiting"),
        (RunFacts(R.WAITING, waited=True, token=WaitKeyState.EXPIRED), "interrupted_waiting"),
        (RunFacts(R.WAITING, waited=True, token=WaitKeyState.REVOKED), "interrupted_waiting"),
        (RunFacts(R.WAITING, waited=True, token=None), "interrupted_waiting"),
        (RunFacts(R.WAITING, waited=True, process_gone=True, token=None), "interrupted_startup"),
        (RunFacts(R.RUNNING, waited=True, token=WaitKeyState.CONSUMED), "running"),
        (RunFacts(R.INTERRUPTED), "interrupted_startup"),
        (RunFacts(R.INTERRUPTED, ended_by_user=True), "idle"),
        (RunFacts(R.INTERRUPTED, waited=True), "interrupted_waiting"),
        (RunFacts(R.COMPLETED, process_gone=True, token=None), "idle"),
        (RunFacts(R.FAILED, waited=True), "idle"),
        (RunFacts(R.CANCELLED), "idle"),
    ],
)
def test_status_follows_from_the_newest_run(run: RunFacts | None, status: str) -> None:
    assert derive_status(run) == status
