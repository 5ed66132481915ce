"""What must hold for a session once everything is idle, whatever was killed before."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sessions_app.kernel.rules.states import EXECUTOR, PROMPT, RUN, SESSION, WORK, Machine
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
    may_be_truncated: bool
    """Whether its agentctl or agent was killed or stopped in a turn, so that the log of that turn may be incomplete."""

    @cached_property
    def row(self) -> dict[str, Any]:
        """Return the session's row."""
        return self.session.row

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Return the log."""
        return agent_records.events_of(self.session)

    @cached_property
    def prompts(self) -> list[dict[str, Any]]:
        """Return the prompts of the session."""
        return self.session.rows("session_prompts", "created_at")

    @cached_property
    def runs(self) -> dict[str, str]:
        """Return the state of each run, by message id."""
        return {row["message_id"]: row["state"] for row in self.turns}

    @cached_property
    def turns(self) -> list[dict[str, Any]]:
        """Return the turns of the session."""
        return self.session.rows("session_runs", "started_at")

    @cached_property
    def usage(self) -> list[dict[str, Any]]:
        """Return the entries of the session in the ledger of usage."""
        return self.session.rows("turn_usage", "ended_at")

    @cached_property
    def received(self) -> dict[str, str]:
        """Return the prompt texts that the agent received, by answer id."""
        return agent_records.received_prompts(self.session)

    @cached_property
    def output(self) -> dict[str, str]:
        """Return the agent's output, by answer id."""
        return agent_records.output_texts(self.session)

    @cached_property
    def stored_output(self) -> str:
        """Return the agent's output, from the stored messages that the session page shows."""
        return agent_records.stored_output(self.session)

    @cached_property
    def execution_status(self) -> str:
        """Return the stored status of the execution."""
        return str(self.session.rows("executors_running")[-1]["status"])

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the payloads of all events of a name."""
        return [event["payload"] for event in self.events if event["name"] == name]


def no_duplicate_prompt(evidence: Evidence) -> Iterator[str]:
    """Check that each prompt was received at most as often as it was sent, and every completed one was received."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in evidence.prompts:
        rows[row["text"]].append(row)
    received = Counter(_row_text(text, rows) for text in evidence.received.values())
    for text, count in received.items():
        sent = [row for row in rows.get(text, ()) if row["state"] not in NEVER_SENT]
        if count > len(sent):
            yield f"the agent received {text[-60:]!r} {count} times, but it was sent {len(sent)} times"
    for text, same in rows.items():
        done = [row for row in same if row["state"] == "done" and evidence.runs.get(row["message_id"]) == "completed"]
        if len(done) > received[text]:
            yield f"{text[-60:]!r} is done, but the agent did not receive all of them"


def _row_text(text: str, rows: Iterable[str]) -> str:
    """Return the stored text of a prompt that the agent may have received with a note or a history before it."""
    return max((known for known in rows if text.endswith(known)), key=len, default=text)


def no_lost_or_duplicate_event(evidence: Evidence) -> Iterator[str]:
    """Check that the log has the agent's whole output, answer by answer, or a prefix if the turn was killed."""
    text = agent_text(evidence.events)
    if evidence.stored_output != text:
        yield "the stored messages differ from the events"
    before, answers = agent_records.answers_of(text)
    if before:
        yield f"the log has text that belongs to no answer: {before[:60]!r}"
    twice = [answer for answer, count in Counter(answer for answer, _ in answers).items() if count > 1]
    if twice:
        yield f"answers {twice} are in the log twice"
    logged = dict(answers)
    order = [answer for answer in evidence.output if answer in logged]
    if list(logged) != order:
        yield f"the log has the answers {list(logged)}, the agent gave {list(evidence.output)}"
    for answer, sent in evidence.output.items():
        kept = logged.get(answer, "")
        if kept == sent or (sent.startswith(kept) and _may_be_truncated(evidence, answer)):
            continue
        yield f"answer {answer}: the log has {len(kept)} of {len(sent)} characters: …{kept[-40:]!r}, …{sent[-40:]!r}"


def _may_be_truncated(evidence: Evidence, answer: str) -> bool:
    text = evidence.received.get(answer, "")
    same = [row["message_id"] for row in evidence.prompts if text.endswith(row["text"])]
    return evidence.may_be_truncated and any(
        evidence.runs.get(message_id, "interrupted") == "interrupted" for message_id in same
    )


def no_gap(evidence: Evidence) -> Iterator[str]:
    """Check that the event numbers have no gap and no journal was lost."""
    numbers = [event["seq"] for event in evidence.events]
    if numbers != list(range(1, len(numbers) + 1)) or evidence.row["last_seq"] != len(numbers):
        yield f"the sequence numbers have a gap: {numbers[-1:]} of {len(numbers)}, last_seq {evidence.row['last_seq']}"
    for gap in evidence.named("session.journal_gap"):
        yield f"a journal gap: {gap}"


def one_end_for_each_run(evidence: Evidence) -> Iterator[str]:
    """Check that each run starts once and ends once; it is interrupted at most once."""
    ends: Counter[str] = Counter()
    for end in RUN_ENDS:
        ends.update(payload["run_id"] for payload in evidence.named(f"session.run.{end}"))
    starts = Counter(payload["run_id"] for payload in evidence.named("session.run.started"))
    for run, count in (ends + starts).items():
        if (starts[run], ends[run]) != (1, 1):
            yield f"run {run} started {starts[run]} times and ended {ends[run]} times ({count} in all)"


def only_legal_transitions(evidence: Evidence) -> Iterator[str]:
    """Check that every state and transition is in the state tables, and that the rows have the last states."""
    transitions = [(one["from"], one["to"]) for one in evidence.named("session.state_changed")]
    yield from _illegal_transitions(SESSION, "CREATED", transitions, evidence.row["state"])
    transitions = [(one["from"], one["to"]) for one in evidence.named("session.work_state_changed")]
    yield from _illegal_transitions(WORK, "idle", transitions, evidence.row["work_state"])
    states = [event["payload"]["executor_status"] for event in evidence.events if "executor_status" in event["payload"]]
    yield from _illegal_transitions(EXECUTOR, "stopped", _pairs("stopped", states), evidence.execution_status)
    for row in evidence.prompts:
        states = [
            event["payload"]["state"]
            for event in evidence.events
            if event["name"].startswith("session.prompt.") and event["payload"]["message_id"] == row["message_id"]
        ]
        yield from _illegal_transitions(PROMPT, "queued", _pairs("queued", states), row["state"])
    known = {state for edge in RUN.edges() for state in (edge[0], edge[2])}
    yield from (f"run {message}: state {state}" for message, state in evidence.runs.items() if state not in known)


def _pairs(first: str, states: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip([first, *states], states, strict=False))


def _illegal_transitions(
    machine: Machine, first: str, transitions: Sequence[tuple[str, str]], stored: str
) -> Iterator[str]:
    legal = {(source, target) for source, _, target in machine.edges()}
    at = first
    for before, after in transitions:
        if before != at:
            yield f"{machine.name}: moved from {before}, but was {at}"
        if before != after and (before, after) not in legal:
            yield f"{machine.name}: {before} → {after} is not in the state table"
        at = after
    if stored != at:
        yield f"{machine.name}: the row says {stored}, the log {at}"


def one_receipt_for_each_start(evidence: Evidence) -> Iterator[str]:
    """Check that each start that was carried out, and each agent that started, has exactly one receipt."""
    receipts = Counter(row["launch_id"] for row in evidence.session.rows("continuity_receipts") if row["launch_id"])
    starts = {_dashed(row["id"]): row for row in evidence.session.rows("session_intents") if row["kind"] == "start"}
    for key, row in starts.items():
        count = receipts.get(key, 0)
        if row["done_at"] and row["outcome"] not in NO_RECEIPT and count != 1:
            yield f"the start {key} ({row['outcome']}) has {count} receipts"
    launched = {line["launch_id"] for line in evidence.session.journal() if line["kind"] == "agent.started"}
    for launch in launched:
        row = starts.get(launch, {"outcome": "unknown", "done_at": True})
        if not receipts.get(launch) and row["done_at"] and row["outcome"] != "stopped":
            yield f"the agent of launch {launch} started without a receipt ({row['outcome']})"


def no_open_waits(evidence: Evidence) -> Iterator[str]:
    """Check that no resume token and no permission request is open without its counterpart."""
    open_tokens = [
        row["id"]
        for row in evidence.session.rows("resume_tokens")
        if row["wait_kind"] == "permission" and not (row["consumed_at"] or row["revoked_at"] or row["expired_at"])
    ]
    pending = [row["id"] for row in evidence.session.rows("session_permissions") if row["state"] == "pending"]
    if open_tokens and not pending:
        yield f"tokens {open_tokens} are valid, but no permission is pending"
    if pending and evidence.row["state"] in ("COMPLETED", "CANCELLED"):
        yield f"permissions {pending} are pending in an ended session"


def one_entry_for_each_ended_turn(evidence: Evidence) -> Iterator[str]:
    """Check that the ledger of usage counts each turn of the agent that has ended, and no other."""
    counted = Counter(row["turn_id"] for row in evidence.usage)
    ended = {row["id"] for row in evidence.turns if row["ended_at"] and row["has_process"]}
    if set(counted) != ended or any(count > 1 for count in counted.values()):
        yield f"the ledger counts {dict(counted)}, the turns {sorted(ended)} have ended"


INVARIANTS: Final[Sequence[Callable[[Evidence], Iterable[str]]]] = (
    no_duplicate_prompt,
    no_lost_or_duplicate_event,
    no_gap,
    one_end_for_each_run,
    only_legal_transitions,
    one_receipt_for_each_start,
    no_open_waits,
    one_entry_for_each_ended_turn,
)


def violations(session: ChaosSession, *, may_be_truncated: bool) -> list[str]:
    """Return every violated invariant of an idle session."""
    evidence = Evidence(session, may_be_truncated)
    who = f"{session.behaviour} {session.id}"
    return [f"{check.__name__}: {found} ({who})" for check in INVARIANTS for found in check(evidence)]


def orphans(session: ChaosSession) -> list[int]:
    """Return the pids of an execution that should have none, found by their mark and in the agent's own records."""
    forked = [pid for pid in session.forked() if runs_for_tests(pid)]
    return [*(one.pid for one in session.processes()), *forked]


def _dashed(key: str) -> str:
    return f"{key[:8]}-{key[8:12]}-{key[12:16]}-{key[16:20]}-{key[20:]}"


def describe(events: Sequence[Mapping[str, Any]]) -> str:
    """Return a log as short lines, for a report."""
    return "\n".join(f"  {event['seq']} {event['name']} {json.dumps(event['payload'])[:160]}" for event in events)
