"""The rules of a sweep, in the order in which they are asked (rules, section 7; first match wins).

Each rule has a name, a condition and a decision; the docs are generated from this list. *Unknown* is
not *dead*: no rule for the unknown ends, starts or interrupts anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from executors_app.domain import ExecutorStatus, Observed
from sessions_app.domain.recovery_decisions import (
    back_off,
    end_sleepless,
    give_up,
    later,
    not_resumable,
    not_resumable_later,
    nothing,
    open_workspace,
    owner_left,
    reattach,
    resume,
    stop_it,
    unreachable,
    unwanted,
    wait_for_turn,
    workspace_gone,
)
from sessions_app.domain.recovery_facts import FUTURE, OTHER_HOST, Case, Decision

E = ExecutorStatus


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table; ``says`` is its sentence in the documents."""

    name: str
    when: Callable[[Case], bool]
    then: Callable[[Case], dict[str, Any]]
    says: str


# --- conditions ---


def _sleeping(case: Case) -> bool:
    facts = case.facts
    woken = facts.has_queued_prompts or facts.start_in_flight or case.agent_working
    return facts.asleep and not woken


def _backing_off(case: Case) -> bool:
    at = case.facts.next_restart_at
    return case.start_wanted and at is not None and case.now < at <= case.now + FUTURE


def _left_to_the_start(case: Case) -> bool:
    """At boot an agent that already lives is attached at once; its start then finds it running."""
    return case.start_under_way and not (case.facts.boot and case.agent_alive)


RULES = (
    Rule(
        "foreign_lease",
        lambda c: c.facts.foreign_lease,
        nothing("another supervisor holds it", look_again=True),
        "Another supervisor holds a fresh lease: it is theirs.",
    ),
    Rule(
        "other_host",
        lambda c: c.unknown and c.observation.reason == OTHER_HOST,
        nothing(OTHER_HOST),
        "A local execution of another machine: nothing is written.",
    ),
    Rule(
        "attached",
        lambda c: c.facts.attached and c.observation.observed is not Observed.ALIVE,
        nothing("its stream lives", look_again=True),
        "Our stream from it lives: that counts as alive, whatever the look came to.",
    ),
    Rule("alive_unwanted", lambda c: c.alive and c.unwanted, stop_it, "Stopped, archived or closed: snapshot, stop."),
    Rule(
        "asleep_but_alive",
        lambda c: _sleeping(c) and c.alive,
        end_sleepless,
        "Falling asleep was cut short: it is ended.",
    ),
    Rule("asleep", lambda c: _sleeping(c) and not c.unwanted, nothing("idle"), "Sleeping sessions stay asleep."),
    Rule(
        "start_under_way",
        lambda c: _left_to_the_start(c) and not c.unwanted,
        nothing("a start is under way"),
        "A start is under way and has time left: it is left to it.",
    ),
    Rule(
        "unknown_stopped",
        lambda c: c.unknown and c.facts.executor_status in (None, E.STOPPED),
        nothing("no answer", look_again=True),
        "Nothing claims to run there, and nobody can tell: look again.",
    ),
    Rule("unknown_boot", lambda c: c.unknown and c.facts.boot, unreachable, "No answer at boot: said, not acted upon."),
    Rule(
        "unknown_again",
        lambda c: c.unknown and (c.facts.unknown_before or c.unreachable),
        unreachable,
        "No answer twice: said, not acted upon; the next answer restores it.",
    ),
    Rule("unknown_first", lambda c: c.unknown, nothing("no answer", look_again=True), "No answer: look again first."),
    Rule(
        "alive_no_report",
        lambda c: c.alive and c.agent_state is None,
        reattach,
        "It lives and tells nothing of its agent: attach and listen.",
    ),
    Rule(
        "alive_workspace_session",
        lambda c: c.alive and not c.facts.has_agent,
        later,
        "It is a workspace without an agent, and it is open: attach and listen.",
    ),
    Rule(
        "alive_same_agent",
        lambda c: c.alive and c.agent_alive,
        reattach,
        "The agent is there: reattach, drain the journal, send nothing.",
    ),
    Rule(
        "alive_workspace_only",
        lambda c: c.alive and c.is_workspace_only and not c.assessment.is_resumable and not c.workspace_gone,
        later,
        "Its workspace is open and its user wants no more of it: that its agent cannot come back is no error.",
    ),
    Rule(
        "alive_agent_gone_not_resumable",
        lambda c: c.alive and not c.assessment.is_resumable,
        not_resumable,
        "The agent is gone for good: the workspace stays open.",
    ),
    Rule("dead_unwanted", lambda c: not c.alive and c.unwanted, unwanted, "It is gone, and nobody wants it."),
    Rule(
        "owner_left",
        lambda c: c.start_wanted and not c.facts.owner_in_team,
        owner_left,
        "The owner has left the team: not started by itself.",
    ),
    Rule(
        "gave_up",
        lambda c: c.start_wanted and c.facts.attempts >= c.facts.max_attempts,
        give_up,
        "Started too often without success: only a user starts it again.",
    ),
    Rule("backing_off", _backing_off, back_off, "The last start failed: the next one is not due yet."),
    Rule(
        "waits_for_turn",
        lambda c: c.start_wanted and c.waits_for_turn,
        wait_for_turn,
        "So many are started already, or its executor is full: it waits for its turn.",
    ),
    Rule(
        "alive_agent_gone_resume_now",
        lambda c: c.alive and c.agent_wanted,
        resume,
        "The agent is gone and the policy says now: resume.",
    ),
    Rule("alive_agent_gone_resume_later", lambda c: c.alive, later, "The agent is gone: resumed when asked for."),
    Rule(
        "dead_resume_now",
        lambda c: c.agent_wanted,
        resume,
        "It is gone and the policy says now: rebuild the workspace if needed, start, resume.",
    ),
    Rule(
        "dead_workspace_session",
        lambda c: c.workspace_wanted and (not c.facts.has_agent or c.is_workspace_only),
        open_workspace,
        "It is a workspace without an agent, or wanted as one: open it again.",
    ),
    Rule(
        "dead_not_resumable",
        lambda c: c.workspace_wanted,
        not_resumable,
        "It is gone, the agent cannot come back and the policy says now: start the workspace alone.",
    ),
    Rule(
        "dead_not_resumable_later",
        lambda c: c.agent_lost and c.facts.has_agent and not c.is_workspace_only,
        not_resumable_later,
        "It is gone and the agent cannot come back: said; its workspace is opened when asked for.",
    ),
    Rule(
        "dead_workspace_gone",
        lambda c: c.workspace_gone and c.policy_starts,
        workspace_gone,
        "The worktree is gone for good: said precisely; row and token stay.",
    ),
    Rule("dead_resume_later", lambda _: True, later, "It is gone: started again when asked for."),
)
"""Section 7, completed by the rules 2, 3, 26, 33 and 35."""


def first_match(case: Case) -> tuple[Rule, Decision]:
    """The rule that fires, and what it decides."""
    rule = next(rule for rule in RULES if rule.when(case))
    return rule, Decision(rule=rule.name, observed=case.observation.observed, **rule.then(case))
