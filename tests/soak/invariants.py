"""The invariants of all fake sessions once everything is idle, checked with a few queries for any number of them.

Sessions with real agents are checked by ``tests/chaos/invariants.py``.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sessions_app.kernel.rules.states import OPEN_RUN_STATES
from tests.soak.deployment import FakeSession, SoakDeployment

IDLE_STATES = {"WAITING_FOR_INPUT"}
FINAL_STATES = {"done", "held", "interrupted"}
"""The possible final states of a prompt that no user withdrew."""
PENDING_STATES = {"queued", "sending", "accepted", "delivered"}


@dataclass
class Records:
    """The records of all fake sessions, read once; session ids are 32 hexadecimal digits."""

    accepted: Mapping[str, str] = field(default_factory=dict)
    """Session ids of the prompts that the API accepted, by message id."""
    received: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The message ids that the session's agents received, in order, by session."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """The stored state of each prompt, by message id."""
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The agents' answers in the log, by session."""
    event_counts: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """Number of events, last event number and the session's ``last_seq``, by session."""
    states: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """States of the session and its execution, by session."""
    open_runs: Mapping[str, int] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    """Sessions whose fake agentctl runs."""


def read_records(deployment: SoakDeployment, sessions: Sequence[FakeSession], accepted: Mapping[str, str]) -> Records:
    """Read the records of the sessions from the database and the fake agentctls."""
    keys = {one.execution_id: one.key for one in sessions}
    agentctl_records = deployment.request_fakes("records")
    received = {keys[execution]: ids for execution, ids in agentctl_records["heard"].items() if execution in keys}
    session_keys = set(keys.values())

    def rows(sql: str) -> Iterator[dict[str, Any]]:
        return (row for row in deployment.rows(sql) if uuid.UUID(str(row["session_id"])).hex in session_keys)

    prompts = {row["message_id"]: row["state"] for row in rows("SELECT * FROM session_prompts")}
    counted = "SELECT session_id, COUNT(*) AS count, MAX(seq) AS last FROM session_events GROUP BY session_id"
    events = {_key(row): (row["count"], row["last"]) for row in rows(counted)}
    own = "SELECT id AS session_id, state, last_seq FROM task_sessions"
    ends = {_key(row): row for row in rows(own)}
    statuses = {_key(row): row["status"] for row in rows("SELECT session_id, status FROM executors_running")}
    runs = Counter(_key(row) for row in rows("SELECT * FROM session_runs") if row["state"] in OPEN_RUN_STATES)
    return Records(
        accepted=accepted,
        received=received,
        prompts=prompts,
        answers=_read_answers(
            rows("SELECT session_id, seq, name, payload FROM session_events ORDER BY session_id, seq")
        ),
        event_counts={key: (*events.get(key, (0, 0)), row["last_seq"]) for key, row in ends.items()},
        states={key: (row["state"], statuses.get(key, "none")) for key, row in ends.items()},
        open_runs=runs,
        running={keys[execution] for execution in agentctl_records["up"] if execution in keys},
    )


def _key(row: Mapping[str, Any]) -> str:
    return uuid.UUID(str(row["session_id"])).hex


def _read_answers(events: Iterator[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the answers of each session; each begins with the word ``answer`` in the log."""
    texts: dict[str, str] = {}
    roles: dict[str, str] = {}
    for event in events:
        payload, key = json.loads(event["payload"]), _key(event)
        if event["name"] == "session.message.added":
            roles[payload["message_id"]] = payload["role"]
        if event["name"].startswith("session.message.") and roles.get(payload["message_id"]) == "agent":
            texts[key] = texts.get(key, "") + str(payload.get("text") or payload.get("append") or "")
    return {key: text.split("answer ")[1:] for key, text in texts.items()}


def no_duplicates(records: Records) -> Iterator[str]:
    """No agent received a prompt twice, even after it was killed, and no answer is in the log twice."""
    for key, ids in records.received.items():
        yield from (f"session {key} got {one} {times} times" for one, times in Counter(ids).items() if times > 1)
    for key, answers in records.answers.items():
        yield from (f"session {key} has the answer to {one} {n} times" for one, n in Counter(answers).items() if n > 1)


def nothing_lost(records: Records) -> Iterator[str]:
    """Yield each accepted prompt has a final state, and the log has each answer of an agent, in order."""
    for message_id in records.accepted:
        state = records.prompts.get(message_id, "missing")
        if state not in FINAL_STATES:
            yield f"the prompt {message_id} is {state}"
    got = {one for ids in records.received.values() for one in ids}
    for message_id, state in records.prompts.items():
        if state == "done" and message_id not in got:
            yield f"the prompt {message_id} is done, but no agent received it"
    for key, ids in records.received.items():
        answers = records.answers.get(key, ())
        if list(answers) != list(ids):
            yield f"session {key}: the log has {len(answers)} of {len(ids)} answers, or in another order"


def no_gap(records: Records) -> Iterator[str]:
    """Yield the event numbers of every log have no gap."""
    for key, (count, last, own) in records.event_counts.items():
        if not count == last == own:
            yield f"session {key} has {count} events, the last is {last}, the session says {own}"


def expected_states(records: Records) -> Iterator[str]:
    """Yield every agent is ready and waits for input; no turn is open."""
    for key, (state, status) in records.states.items():
        if state not in IDLE_STATES or status != "ready":
            yield f"session {key} is {state}, its execution {status}"
    yield from (f"session {key} has {count} open turns" for key, count in records.open_runs.items() if count)


def no_orphan(records: Records) -> Iterator[str]:
    """Yield every ready session has a running agentctl, and every running agentctl a ready session."""
    ready = {key for key, (_, status) in records.states.items() if status == "ready"}
    yield from (f"session {key} is ready, but its agentctl does not run" for key in sorted(ready - records.running))
    yield from (f"session {key} is not ready, but its agentctl runs" for key in sorted(records.running - ready))


INVARIANTS = {
    "no duplicates": no_duplicates,
    "nothing lost": nothing_lost,
    "no gap": no_gap,
    "expected states": expected_states,
    "no orphans": no_orphan,
}


def find_violations(records: Records) -> dict[str, list[str]]:
    """Return the violations by invariant."""
    return {name: list(check(records)) for name, check in INVARIANTS.items()}
