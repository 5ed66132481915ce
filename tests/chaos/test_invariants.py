"""Each chaos invariant finds the violation it is written for and accepts correct evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, cast

import pytest

from tests.chaos import invariants
from tests.chaos.behaviours import BEHAVIOURS
from tests.chaos.deployment import ChaosSession
from tests.chaos.invariants import Evidence
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


def evidence(*, excused: bool = False, **seen: Any) -> Evidence:
    """Evidence of a session in which only this was observed; everything else is correct."""
    made = Evidence(cast(ChaosSession, None), excused)
    texts = "".join(event["payload"].get("text", "") for event in seen.get("events", ()))
    right = {"row": {"state": "CREATED", "work_state": "idle"}, "events": [], "prompts": [], "runs": {}, "heard": {}}
    vars(made).update({**right, "spoken": {}, "kept": texts, "execution_status": "stopped", **seen})
    return made


TWO_PROMPTS = [prompt("p1", "do [tag-1]"), prompt("p2", "do [tag-2]")]
BOTH_DONE = {"p1": "completed", "p2": "completed"}
HEARD = {"1-1": "do [tag-1]", "1-2": "do [tag-2]"}
RIGHT = {"events": agent_messages(ONE, TWO), "spoken": {"1-1": ONE, "1-2": TWO}, "prompts": TWO_PROMPTS, "heard": HEARD}
CUT = {"1-1": ONE, "1-2": TWO + "and more"}


@pytest.mark.parametrize(
    ("check", "seen", "holds"),
    [
        (invariants.no_prompt_twice, {"prompts": TWO_PROMPTS, "runs": BOTH_DONE, "heard": HEARD}, True),
        (
            invariants.no_prompt_twice,
            {"prompts": TWO_PROMPTS, "heard": {**HEARD, "2-1": "a note\n\ndo [tag-2]"}},
            False,
        ),
        (invariants.no_prompt_twice, {"prompts": [prompt("p1", "do", "queued")], "heard": {"1-1": "do"}}, False),
        (invariants.no_prompt_twice, {"prompts": [prompt("p1", "do", "held")], "heard": {"1-1": "do"}}, True),
        (invariants.no_prompt_twice, {"prompts": TWO_PROMPTS, "runs": BOTH_DONE, "heard": {}}, False),
        (invariants.no_event_lost_or_doubled, RIGHT, True),
        (invariants.no_event_lost_or_doubled, {**RIGHT, "events": agent_messages(ONE)}, False),
        (invariants.no_event_lost_or_doubled, {**RIGHT, "events": agent_messages(ONE, TWO, TWO)}, False),
        (invariants.no_event_lost_or_doubled, {**RIGHT, "events": agent_messages(TWO, ONE)}, False),
        (invariants.no_event_lost_or_doubled, {**RIGHT, "events": agent_messages(ONE, TWO, "beside\n")}, False),
        (invariants.no_event_lost_or_doubled, {**RIGHT, "kept": ONE}, False),
        (invariants.no_event_lost_or_doubled, {**RIGHT, "spoken": CUT, "excused": True}, True),
        (invariants.no_event_lost_or_doubled, {**RIGHT, "spoken": CUT, "runs": BOTH_DONE, "excused": True}, False),
        (invariants.no_event_lost_or_doubled, {**RIGHT, "spoken": CUT}, False),
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
        (invariants.only_legal_moves, {"row": {"state": "COMPLETED", "work_state": "idle"}}, False),
        (
            invariants.only_legal_moves,
            {
                "events": state_changes("CREATED", "STARTING", "RUNNING"),
                "row": {"state": "RUNNING", "work_state": "idle"},
            },
            True,
        ),
        (
            invariants.only_legal_moves,
            {
                "events": state_changes("CREATED", "COMPLETED", "RUNNING"),
                "row": {"state": "RUNNING", "work_state": "idle"},
            },
            False,
        ),
        (invariants.only_legal_moves, {"runs": {"p1": "lost"}}, False),
        (invariants.only_legal_moves, {"execution_status": "ready"}, False),
    ],
)
def test_invariant_finds_its_violation_and_accepts_correct_evidence(
    check: Callable[[Evidence], Iterable[str]], seen: dict[str, Any], holds: bool
) -> None:
    found = list(check(evidence(**seen)))
    assert (not found) == holds, found


def test_every_behaviour_is_implemented_by_the_chaos_agent() -> None:
    assert set(BEHAVIOURS) == set(IMPLEMENTED)
