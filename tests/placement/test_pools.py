"""Which executor of a pool a session gets, as a table."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from sessions_app.placement.rules.pools import Candidate, Placed, Waiting, choose_executor


def candidate(name: str, limit: int = 8, used: int = 0, *, labels: str = "", ahead: int = 0) -> Candidate:
    return Candidate(uuid.uuid5(uuid.NAMESPACE_DNS, name), name, frozenset(labels.split()), limit, used, ahead)


A, B = candidate("a"), candidate("b")


@pytest.mark.parametrize(
    ("candidates", "wanted", "reason"),
    [
        ([candidate("a", 8, 2)], "", "Placed on a: 2 of 8 places used."),
        ([candidate("a", 1)], "", "Placed on a: 0 of 1 place used."),
        ([replace(A, has_repository=True)], "", "Placed on a: 0 of 8 places used, has the repository."),
        ([candidate("a", 8, 2), candidate("b", 8, 1)], "", "Placed on b: 1 of 8 places used."),
        ([candidate("b", 4), candidate("a", 4)], "", "Placed on a: 0 of 4 places used."),
        ([candidate("a", 2, 1), candidate("b", 8, 5)], "", "Placed on b: 5 of 8 places used."),
        ([candidate("a", 9, 0, ahead=8), candidate("b", 8, 5)], "", "Placed on b: 5 of 8 places used."),
        ([A, candidate("g", 2, 1, labels="gpu")], "gpu", "Placed on g: 1 of 2 places used, has the labels gpu."),
        ([replace(A, has_repository=False), candidate("b", 2, 1)], "", "Placed on b: 1 of 2 places used."),
        ([replace(A, is_attended=False), candidate("b", 2, 1)], "", "Placed on b: 1 of 2 places used."),
        ([replace(A, is_cordoned=True), candidate("b", 2, 1)], "", "Placed on b: 1 of 2 places used."),
    ],
)
def test_session_gets_the_fitting_executor_with_most_room(
    candidates: list[Candidate], wanted: str, reason: str
) -> None:
    found = choose_executor("build", candidates, wanted.split(), "/srv/app")
    assert isinstance(found, Placed)
    assert found.reason == reason
    assert choose_executor("build", candidates[::-1], wanted.split(), "/srv/app") == found


@pytest.mark.parametrize(
    ("candidates", "wanted", "cause"),
    [
        ([], "", "The pool build has no executor that takes new sessions."),
        ([A, B], "gpu large", "No executor of the pool build has the labels gpu, large."),
        ([replace(A, is_attended=False)], "", "No host of the pool build has a supervisor."),
        ([replace(A, is_cordoned=True)], "", "The hosts of the pool build take no new sessions: they are cordoned."),
        ([replace(A, has_repository=False)], "", "No host of the pool build has the repository /srv/app."),
        ([candidate("g", 1, labels="gpu"), replace(A, has_repository=False)], "large", None),
    ],
)
def test_session_that_fits_nowhere_says_why(candidates: list[Candidate], wanted: str, cause: str | None) -> None:
    found = choose_executor("build", candidates, wanted.split(), "/srv/app")
    assert found == Waiting(cause or "No executor of the pool build has the labels large.")


@pytest.mark.parametrize(
    "full", [candidate("f", 2, 2), candidate("f", 2, 3), candidate("f", 2, 1, ahead=1), candidate("f", 0)]
)
def test_full_executors_that_fit_are_waited_for(full: Candidate) -> None:
    unfit = replace(candidate("u"), has_repository=False)
    assert choose_executor("build", [full, unfit], [], "/srv/app") == Waiting("", (full.id,))
