"""Each chaos invariant finds the violation it is written for and accepts correct evidence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, cast

import pytest

from tests.chaos import invariants
from tests.chaos.behaviours import BEHAVIOURS, DRILLED, OTHER_TESTS, REQUIRED_STAGE
from tests.chaos.deployment import ChaosSession
from tests.chaos.invariants import Evidence
from tests.drills.deployment import ROOT
from tests.support.faulty_agent import BEHAVIOURS as IMPLEMENTED

ONE = "<answer 1-1>\nfirst\n"
TWO = "<answer 1-2>\nsecond\n"


def prompt(message_id: str, text: str, state: str = "done") -> dict[str, str]:
    return {"message_id": message_id, "text": text, "state": state}


def agent_messages(*texts: str) -> list[dict[str, Any]]:
    payloads = [{"message_id": str(number), "role": "agent", "text": text} for number, text in enumerate(texts)]
    return [{"name": "session.message.added", "payload": payload} for payload in payloads]


def state_changes(*states: str) -> list[dict[str, Any]]:
    changes = [{"from": one, "to": two} for one, two in pairwise(states)]
    return [{"name": "session.state_changed", "payload": change} for change in changes]


def run_events(*names: str) -> list[dict[str, Any]]:
    return [{"name": f"session.run.{name}", "payload": {"run_id": "r1"}} for name in names]


def evidence(*, may_be_truncated: bool = False, **observed: Any) -> Evidence:
    """Return evidence with these observations; everything else is correct."""
    built = Evidence(cast(ChaosSession, None), may_be_truncated)
    texts = "".join(event["payload"].get("text", "") for event in observed.get("events", ()))
    correct = {
        "row": {"state": "CREATED", "work_state": "idle"},
        "events": [],
        "prompts": [],
        "runs": {},
        "received": {},
    }
    vars(built).update({**correct, "output": {}, "stored_output": texts, "execution_status": "stopped", **observed})
    return built


TWO_PROMPTS = [prompt("p1", "do [tag-1]"), prompt("p2", "do [tag-2]")]
BOTH_DONE = {"p1": "completed", "p2": "completed"}
RECEIVED = {"1-1": "do [tag-1]", "1-2": "do [tag-2]"}
CORRECT = {
    "events": agent_messages(ONE, TWO),
    "output": {"1-1": ONE, "1-2": TWO},
    "prompts": TWO_PROMPTS,
    "received": RECEIVED,
}
TURNS = [
    {"id": "t1", "ended_at": "2026-01-31", "has_process": True},
    {"id": "t2", "ended_at": None, "has_process": True},
    {"id": "w1", "ended_at": "2026-01-31", "has_process": False},
]
TRUNCATED = {"1-1": ONE, "1-2": TWO + "and more"}


@pytest.mark.parametrize(
    ("check", "observed", "holds"),
    [
        (invariants.no_duplicate_prompt, {"prompts": TWO_PROMPTS, "runs": BOTH_DONE, "received": RECEIVED}, True),
        (
            invariants.no_duplicate_prompt,
            {"prompts": TWO_PROMPTS, "received": {**RECEIVED, "2-1": "a note\n\ndo [tag-2]"}},
            False,
        ),
        (invariants.no_duplicate_prompt, {"prompts": [prompt("p1", "do", "queued")], "received": {"1-1": "do"}}, False),
        (invariants.no_duplicate_prompt, {"prompts": [prompt("p1", "do", "held")], "received": {"1-1": "do"}}, True),
        (invariants.no_duplicate_prompt, {"prompts": TWO_PROMPTS, "runs": BOTH_DONE, "received": {}}, False),
        (invariants.no_lost_or_duplicate_event, CORRECT, True),
        (invariants.no_lost_or_duplicate_event, {**CORRECT, "events": agent_messages(ONE)}, False),
        (invariants.no_lost_or_duplicate_event, {**CORRECT, "events": agent_messages(ONE, TWO, TWO)}, False),
        (invariants.no_lost_or_duplicate_event, {**CORRECT, "events": agent_messages(TWO, ONE)}, False),
        (invariants.no_lost_or_duplicate_event, {**CORRECT, "events": agent_messages(ONE, TWO, "beside\n")}, False),
        (invariants.no_lost_or_duplicate_event, {**CORRECT, "stored_output": ONE}, False),
        (invariants.no_lost_or_duplicate_event, {**CORRECT, "output": TRUNCATED, "may_be_truncated": True}, True),
        (
            invariants.no_lost_or_duplicate_event,
            {**CORRECT, "output": TRUNCATED, "runs": BOTH_DONE, "may_be_truncated": True},
            False,
        ),
        (invariants.no_lost_or_duplicate_event, {**CORRECT, "output": TRUNCATED}, False),
        (invariants.no_gap, {"events": [{"name": "x", "seq": 1, "payload": {}}], "row": {"last_seq": 1}}, True),
        (invariants.no_gap, {"events": [{"name": "x", "seq": 2, "payload": {}}], "row": {"last_seq": 2}}, False),
        (
            invariants.no_gap,
            {"events": [{"name": "session.journal_gap", "seq": 1, "payload": {}}], "row": {"last_seq": 1}},
            False,
        ),
        (invariants.one_end_for_each_run, {"events": run_events("started", "completed")}, True),
        (invariants.one_end_for_each_run, {"events": run_events("started", "interrupted", "interrupted")}, False),
        (invariants.one_end_for_each_run, {"events": run_events("started")}, False),
        (invariants.only_legal_transitions, {"row": {"state": "COMPLETED", "work_state": "idle"}}, False),
        (
            invariants.only_legal_transitions,
            {
                "events": state_changes("CREATED", "STARTING", "RUNNING"),
                "row": {"state": "RUNNING", "work_state": "idle"},
            },
            True,
        ),
        (
            invariants.only_legal_transitions,
            {
                "events": state_changes("CREATED", "COMPLETED", "RUNNING"),
                "row": {"state": "RUNNING", "work_state": "idle"},
            },
            False,
        ),
        (invariants.only_legal_transitions, {"runs": {"p1": "lost"}}, False),
        (invariants.only_legal_transitions, {"execution_status": "ready"}, False),
        (invariants.one_entry_for_each_ended_turn, {"turns": TURNS, "usage": [{"turn_id": "t1"}]}, True),
        (invariants.one_entry_for_each_ended_turn, {"turns": TURNS, "usage": []}, False),
        (invariants.one_entry_for_each_ended_turn, {"turns": TURNS, "usage": [{"turn_id": "t1"}] * 2}, False),
        (
            invariants.one_entry_for_each_ended_turn,
            {"turns": TURNS, "usage": [{"turn_id": "t1"}, {"turn_id": "t2"}]},
            False,
        ),
    ],
)
def test_invariant_finds_its_violation_and_accepts_correct_evidence(
    check: Callable[[Evidence], Iterable[str]], observed: dict[str, Any], holds: bool
) -> None:
    found = list(check(evidence(**observed)))
    assert (not found) == holds, found


def test_every_point_that_no_agent_of_the_matrix_reaches_is_named_in_another_test() -> None:
    for point, stage in REQUIRED_STAGE.items():
        for folder in re.findall(r"tests/\w+", OTHER_TESTS.get(stage, "")):
            code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / folder).glob("*.py"))
            assert f'"{point}' in code, f"{point} in {folder}"


def test_every_other_test_is_named_with_its_folder() -> None:
    assert all(re.search(r"; tests/\w+ covers it$", reason) for reason in OTHER_TESTS.values())


def test_every_behaviour_is_implemented_by_the_chaos_agent() -> None:
    assert set(BEHAVIOURS) | DRILLED == set(IMPLEMENTED)
