"""What must hold of all fake sessions once everything is at rest; a few queries, however many there are.

The real agents among them are judged by ``tests/chaos/invariants.py``.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sessions_app.domain.states import OPEN_RUN_STATES
from tests.soak.deployment import FakeSession, SoakDeployment

RIGHT_STATES = {"WAITING_FOR_INPUT"}
KEPT = {"done", "held", "interrupted"}
"""Where a prompt may end that nobody took back."""
UNDER_WAY = {"queued", "sending", "accepted", "delivered"}


@dataclass
class Seen:
    """All of them, read once; ids are 32 digits."""

    given: Mapping[str, str] = field(default_factory=dict)
    """Message ids that a user was told are accepted, with the session's id."""
    heard: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By session: the message ids that its agents got, in order."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """The state of each message id in the ledger."""
    said: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By session: what its agents said, answer by answer, as the log has it."""
    numbers: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """By session: events, their last number, and the session's own."""
    states: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By session: its state and its execution's."""
    open_runs: Mapping[str, int] = field(default_factory=dict)
    up: set[str] = field(default_factory=set)
    """Sessions whose agentctl is there, by the word of the fake agentctls."""


def look(world: SoakDeployment, sessions: Sequence[FakeSession], given: Mapping[str, str]) -> Seen:
    """Read everything."""
    keys = {one.execution_id: one.key for one in sessions}
    told = world.request_fakes("records")
    heard = {keys[execution]: ids for execution, ids in told["heard"].items() if execution in keys}
    mine = set(keys.values())

    def rows(sql: str) -> Iterator[dict[str, Any]]:
        return (row for row in world.rows(sql) if uuid.UUID(str(row["session_id"])).hex in mine)

    prompts = {row["message_id"]: row["state"] for row in rows("SELECT * FROM session_prompts")}
    counted = "SELECT session_id, COUNT(*) AS count, MAX(seq) AS last FROM session_events GROUP BY session_id"
    events = {_key(row): (row["count"], row["last"]) for row in rows(counted)}
    own = "SELECT id AS session_id, state, last_seq FROM task_sessions"
    ends = {_key(row): row for row in rows(own)}
    statuses = {_key(row): row["status"] for row in rows("SELECT session_id, status FROM executors_running")}
    runs = Counter(_key(row) for row in rows("SELECT * FROM session_runs") if row["state"] in OPEN_RUN_STATES)
    return Seen(
        given=given,
        heard=heard,
        prompts=prompts,
        said=_said(rows("SELECT session_id, seq, name, payload FROM session_events ORDER BY session_id, seq")),
        numbers={key: (*events.get(key, (0, 0)), row["last_seq"]) for key, row in ends.items()},
        states={key: (row["state"], statuses.get(key, "none")) for key, row in ends.items()},
        open_runs=runs,
        up={keys[execution] for execution in told["up"] if execution in keys},
    )


def _key(row: Mapping[str, Any]) -> str:
    return uuid.UUID(str(row["session_id"])).hex


def _said(events: Iterator[dict[str, Any]]) -> dict[str, list[str]]:
    """The answers of each session; each begins with the word ``answer``."""
    texts: dict[str, str] = {}
    roles: dict[str, str] = {}
    for event in events:
        payload, key = json.loads(event["payload"]), _key(event)
        if event["name"] == "session.message.added":
            roles[payload["message_id"]] = payload["role"]
        if event["name"].startswith("session.message.") and roles.get(payload["message_id"]) == "agent":
            texts[key] = texts.get(key, "") + str(payload.get("text") or payload.get("append") or "")
    return {key: text.split("answer ")[1:] for key, text in texts.items()}


def nothing_twice(seen: Seen) -> Iterator[str]:
    """No agent received a prompt again, not even after its own death, and no answer is in the log again."""
    for key, ids in seen.heard.items():
        yield from (f"session {key} got {one} {times} times" for one, times in Counter(ids).items() if times > 1)
    for key, answers in seen.said.items():
        yield from (f"session {key} has the answer to {one} {n} times" for one, n in Counter(answers).items() if n > 1)


def nothing_lost(seen: Seen) -> Iterator[str]:
    """What a user gave is in the ledger and came to an end; what an agent answered is in the log, in its order."""
    for message_id in seen.given:
        state = seen.prompts.get(message_id, "nowhere")
        if state not in KEPT:
            yield f"the prompt {message_id} is {state}"
    got = {one for ids in seen.heard.values() for one in ids}
    for message_id, state in seen.prompts.items():
        if state == "done" and message_id not in got:
            yield f"the prompt {message_id} is done, but no agent has got it"
    for key, ids in seen.heard.items():
        if list(seen.said.get(key, ())) != list(ids):
            yield f"session {key}: the log has {len(seen.said.get(key, ()))} of {len(ids)} answers, or another order"


def no_gap(seen: Seen) -> Iterator[str]:
    """The numbers of every log run from 1 without a hole."""
    for key, (count, last, own) in seen.numbers.items():
        if not count == last == own:
            yield f"session {key} has {count} events, the last is {last}, the session says {own}"


def as_it_should_be(seen: Seen) -> Iterator[str]:
    """Everybody is up and waits; no turn is open."""
    for key, (state, status) in seen.states.items():
        if state not in RIGHT_STATES or status != "ready":
            yield f"session {key} is {state}, its execution {status}"
    yield from (f"session {key} has {count} open turns" for key, count in seen.open_runs.items() if count)


def no_orphan(seen: Seen) -> Iterator[str]:
    """Who runs is known, and who is known runs."""
    ready = {key for key, (_, status) in seen.states.items() if status == "ready"}
    yield from (f"session {key} is ready, but nothing of it runs" for key in sorted(ready - seen.up))
    yield from (f"session {key} runs, and nobody knows of it" for key in sorted(seen.up - ready))


INVARIANTS = {
    "nothing twice": nothing_twice,
    "nothing lost": nothing_lost,
    "no gap": no_gap,
    "every state as it should be": as_it_should_be,
    "no orphans": no_orphan,
}


def violations(seen: Seen) -> dict[str, list[str]]:
    """By invariant, what breaks it."""
    return {name: list(check(seen)) for name, check in INVARIANTS.items()}
