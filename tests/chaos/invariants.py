"""What must hold for a session once everything is idle, whatever was killed before."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sessions_app.domain.states import EXECUTOR, PROMPT, RUN, SESSION, WORK, Machine
from tests.chaos import agent_records
from tests.chaos.deployment import ChaosSession, runs_for_tests
from tests.drills.deployment import agent_text

NEVER_SENT: Final = frozenset({"queued", "withdrawn"})
RUN_ENDS: Final = frozenset({"completed", "failed", "cancelled", "interrupted"})
NO_RECEIPT: Final = frozenset({"stopped", "already_running", "no_execution"})
"""Outcomes of start intents that started nothing."""


@dataclass
class Evidence:
    """One session, read once: the database on one side, the agent's own records on the other."""

    session: ChaosSession
    excused: bool
    """Its agentctl or agent was killed or stopped in a turn, so the log of that turn may be incomplete."""

    @cached_property
    def row(self) -> dict[str, Any]:
        """The session's row."""
        return self.session.row

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The log."""
        return agent_records.events_of(self.session)

    @cached_property
    def prompts(self) -> list[dict[str, Any]]:
        """The prompts of the session."""
        return self.session.rows("session_prompts", "created_at")

    @cached_property
    def runs(self) -> dict[str, str]:
        """The state of each run, by message id."""
        return {row["message_id"]: row["state"] for row in self.session.rows("session_runs", "started_at")}

    @cached_property
    def heard(self) -> dict[str, str]:
        """The prompt texts that the agent got, by answer."""
        return agent_records.received_prompts(self.session)

    @cached_property
    def spoken(self) -> dict[str, str]:
        """What the agent said, by answer."""
        return agent_records.spoken_texts(self.session)

    @cached_property
    def kept(self) -> str:
        """What the agent said, from the messages that the page shows."""
        return agent_records.kept_text(self.session)

    @cached_property
    def execution_status(self) -> str:
        """The stored status of the execution."""
        return str(self.session.rows("executors_running")[-1]["status"])

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the payloads of all events of a name."""
        return [event["payload"] for event in self.events if event["name"] == name]


def no_prompt_twice(seen: Evidence) -> Iterator[str]:
    """The agent got each prompt at most as often as it is in the queue, and got every completed one."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in seen.prompts:
        rows[row["text"]].append(row)
    got = Counter(_row_text(text, rows) for text in seen.heard.values())
    for text, count in got.items():
        sent = [row for row in rows.get(text, ()) if row["state"] not in NEVER_SENT]
        if count > len(sent):
            yield f"the agent got {text[-60:]!r} {count} times, the ledger sent it {len(sent)} times"
    for text, same in rows.items():
        done = [row for row in same if row["state"] == "done" and seen.runs.get(row["message_id"]) == "completed"]
        if len(done) > got[text]:
            yield f"{text[-60:]!r} is done, but the agent has never got it"


def _row_text(text: str, rows: Iterable[str]) -> str:
    """Return the stored text of a prompt that may have reached the agent behind a note or a history."""
    return max((known for known in rows if text.endswith(known)), key=len, default=text)


def no_event_lost_or_doubled(seen: Evidence) -> Iterator[str]:
    """The log has what the agent said, answer by answer; only a prefix if something was killed during the turn."""
    text = agent_text(seen.events)
    if seen.kept != text:
        yield "the conversation's messages are not what the events say"
    before, answers = agent_records.answers_of(text)
    if before:
        yield f"the log has text of no answer: {before[:60]!r}"
    twice = [answer for answer, count in Counter(answer for answer, _ in answers).items() if count > 1]
    if twice:
        yield f"answers {twice} are in the log twice"
    logged = dict(answers)
    order = [answer for answer in seen.spoken if answer in logged]
    if list(logged) != order:
        yield f"the log has the answers {list(logged)}, the agent gave {list(seen.spoken)}"
    for answer, said in seen.spoken.items():
        there = logged.get(answer, "")
        if there == said or (said.startswith(there) and _may_be_cut(seen, answer)):
            continue
        yield f"answer {answer}: the log has {len(there)} characters of {len(said)}: …{there[-40:]!r}, …{said[-40:]!r}"


def _may_be_cut(seen: Evidence, answer: str) -> bool:
    text = seen.heard.get(answer, "")
    same = [row["message_id"] for row in seen.prompts if text.endswith(row["text"])]
    return seen.excused and any(seen.runs.get(message_id, "interrupted") == "interrupted" for message_id in same)


def no_gap(seen: Evidence) -> Iterator[str]:
    """The event numbers have no gap, and no journal was lost."""
    numbers = [event["seq"] for event in seen.events]
    if numbers != list(range(1, len(numbers) + 1)) or seen.row["last_seq"] != len(numbers):
        yield f"the log's numbers have a hole: {numbers[-1:]} of {len(numbers)}, last_seq {seen.row['last_seq']}"
    for gap in seen.named("session.journal_gap"):
        yield f"a journal gap: {gap}"


def one_end_for_each_run(seen: Evidence) -> Iterator[str]:
    """Each run starts once and ends once; interrupted at most once."""
    ends: Counter[str] = Counter()
    for end in RUN_ENDS:
        ends.update(payload["run_id"] for payload in seen.named(f"session.run.{end}"))
    starts = Counter(payload["run_id"] for payload in seen.named("session.run.started"))
    for run, count in (ends + starts).items():
        if (starts[run], ends[run]) != (1, 1):
            yield f"run {run} started {starts[run]} times and ended {ends[run]} times ({count} in all)"


def only_legal_moves(seen: Evidence) -> Iterator[str]:
    """Every state and transition is in the tables, and the rows have the last states."""
    moves = [(one["from"], one["to"]) for one in seen.named("session.state_changed")]
    yield from _broken(SESSION, "CREATED", moves, seen.row["state"])
    moves = [(one["from"], one["to"]) for one in seen.named("session.work_state_changed")]
    yield from _broken(WORK, "idle", moves, seen.row["work_state"])
    said = [event["payload"]["executor_status"] for event in seen.events if "executor_status" in event["payload"]]
    yield from _broken(EXECUTOR, "stopped", _pairs("stopped", said), seen.execution_status)
    for row in seen.prompts:
        said = [
            event["payload"]["state"]
            for event in seen.events
            if event["name"].startswith("session.prompt.") and event["payload"]["message_id"] == row["message_id"]
        ]
        yield from _broken(PROMPT, "queued", _pairs("queued", said), row["state"])
    known = {state for edge in RUN.edges() for state in (edge[0], edge[2])}
    yield from (f"run {message}: state {state}" for message, state in seen.runs.items() if state not in known)


def _pairs(first: str, said: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip([first, *said], said, strict=False))


def _broken(machine: Machine, first: str, moves: Sequence[tuple[str, str]], stored: str) -> Iterator[str]:
    legal = {(source, target) for source, _, target in machine.edges()}
    at = first
    for before, after in moves:
        if before != at:
            yield f"{machine.name}: moved from {before}, but was {at}"
        if before != after and (before, after) not in legal:
            yield f"{machine.name}: {before} → {after} is in no table"
        at = after
    if stored != at:
        yield f"{machine.name}: the row says {stored}, the log {at}"


def a_receipt_for_each_resume(seen: Evidence) -> Iterator[str]:
    """Each start that was carried out, and each agent that came up, has exactly one receipt."""
    receipts = Counter(row["launch_id"] for row in seen.session.rows("continuity_receipts") if row["launch_id"])
    starts = {_dashed(row["id"]): row for row in seen.session.rows("session_intents") if row["kind"] == "start"}
    for key, row in starts.items():
        told = receipts.get(key, 0)
        if row["done_at"] and row["outcome"] not in NO_RECEIPT and told != 1:
            yield f"the start {key} ({row['outcome']}) has {told} receipts"
    launched = {line["launch_id"] for line in seen.session.journal() if line["kind"] == "agent.started"}
    for launch in launched:
        row = starts.get(launch, {"outcome": "unknown", "done_at": True})
        if not receipts.get(launch) and row["done_at"] and row["outcome"] != "stopped":
            yield f"the agent of launch {launch} came up without a receipt ({row['outcome']})"


def nothing_left_open(seen: Evidence) -> Iterator[str]:
    """At the end nothing is waiting."""
    open_tokens = [
        row["id"]
        for row in seen.session.rows("resume_tokens")
        if row["wait_kind"] == "permission" and not (row["consumed_at"] or row["revoked_at"] or row["expired_at"])
    ]
    asked = [row["id"] for row in seen.session.rows("session_permissions") if row["state"] == "pending"]
    if open_tokens and not asked:
        yield f"tokens {open_tokens} are alive, but nothing is asked"
    if asked and seen.row["state"] in ("COMPLETED", "CANCELLED"):
        yield f"permissions {asked} wait in an ended session"


INVARIANTS: Final[Sequence[Callable[[Evidence], Iterable[str]]]] = (
    no_prompt_twice,
    no_event_lost_or_doubled,
    no_gap,
    one_end_for_each_run,
    only_legal_moves,
    a_receipt_for_each_resume,
    nothing_left_open,
)


def violations(session: ChaosSession, *, excused: bool) -> list[str]:
    """Return every violated invariant of a session at rest."""
    seen = Evidence(session, excused)
    who = f"{session.behaviour} {session.id}"
    return [f"{check.__name__}: {found} ({who})" for check in INVARIANTS for found in check(seen)]


def orphans(session: ChaosSession) -> list[int]:
    """Return processes of an execution that should have none: by their mark, and by the agent's own records."""
    told = [pid for pid in session.forked() if runs_for_tests(pid)]
    return [*(one.pid for one in session.processes()), *told]


def _dashed(key: str) -> str:
    return f"{key[:8]}-{key[8:12]}-{key[12:16]}-{key[16:20]}-{key[20:]}"


def describe(events: Sequence[Mapping[str, Any]]) -> str:
    """Return a log as short lines, for a report."""
    return "\n".join(f"  {event['seq']} {event['name']} {json.dumps(event['payload'])[:160]}" for event in events)
