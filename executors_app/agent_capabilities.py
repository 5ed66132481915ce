"""What agents claim to support and what was observed, stored per agent type and version (``AgentCapability``).

A claim counts as true until the running agent itself reports that it does not support it; any other failure is only
recorded. Another version counts as another agent, with no failures of its own yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import uuid4

from django.db.models import Q

from executors_app.agentctl.protocol import CapabilityShortfall
from executors_app.models import AgentCapability, AgentProfile, ExecutorRunning
from executors_app.plugins import UnknownPlugin, agent_type

LOAD: Final = "load_session"
RESUME: Final = "resume_session"
CAPABILITIES: Final[Mapping[str, str]] = {LOAD: "session/load", RESUME: "session/resume"}
"""The capabilities by which an agent restores its conversation, with their ACP names."""
FRESH: Final = timedelta(hours=1)
"""Observations within this time are not written again: thousands of concurrent starts must not wait for one row."""
_NO_PROOF: Final = frozenset({"unproven", "pending", "none"})
"""Values of ``kept_proof`` for a success whose conversation was not verified."""
_TEXT_LIMIT: Final = 200
_SAID_LIMIT: Final = 500
_HOW: Final[Mapping[str, str]] = {
    CapabilityShortfall.UNIMPLEMENTED: "it does not support the request",
    CapabilityShortfall.ERROR: "it answered with an error",
    CapabilityShortfall.NO_ANSWER: "it did not answer in time",
    CapabilityShortfall.ENDED: "it exited",
    CapabilityShortfall.OTHER_CONVERSATION: "what it loaded was not the conversation of the log",
    CapabilityShortfall.NEW_CONVERSATION: "it opened a new conversation instead",
}

_BY_OUTCOME: Final[Mapping[str, str]] = {"loaded": LOAD, "resumed": RESUME}


@dataclass(frozen=True, slots=True)
class CapabilityReport:
    """An agent's name and version as it reports them, and the outcome of its claims in one start."""

    agent_type: str
    name: str = ""
    version: str = ""
    claims: Mapping[str, bool] = field(default_factory=dict)
    """By capability; those that it did not mention are missing."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """By capability, how it was proven (``verified`` of the receipt)."""
    broken: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By capability: shortfall and the agent's own words."""
    tried: str = ""
    """The capability by which it restored a conversation; empty: none."""
    replayed: bool = False
    """Whether it replayed user messages, of any conversation."""


def build_capability_report(
    agent_type: str,
    answer: Mapping[str, Any],
    *,
    kept: Mapping[str, str] | None = None,
    broken: Mapping[str, tuple[str, str]] | None = None,
    secret: str = "",
) -> CapabilityReport:
    """Build the report from any answer to a start; ``secret`` is removed from the agent's words."""
    agent, claims = _object(answer.get("agent")), _object(answer.get("capabilities"))
    unkept = {
        name: (_how(_object(shortfall).get("how")), _words(_object(shortfall).get("said"), secret))
        for name, shortfall in _object(answer.get("unkept")).items()
        if name in CAPABILITIES
    }
    return CapabilityReport(
        agent_type=agent_type,
        name=_text(agent.get("name")),
        version=_text(agent.get("version")),
        claims={name: claims[name] for name in CAPABILITIES if isinstance(claims.get(name), bool)},
        kept={name: proof for name, proof in (kept or {}).items() if name in CAPABILITIES},
        broken={**unkept, **{name: (how, _words(said, secret)) for name, (how, said) in (broken or {}).items()}},
        tried=_BY_OUTCOME.get(str(answer.get("outcome")), ""),
        replayed=bool(answer.get("replayed_user_texts")),
    )


def agent_identity(answer: Mapping[str, Any]) -> dict[str, str] | None:
    """Return ``{"name", "version"}`` as the agent reported them, fit for the database; None if it reported none."""
    agent = _object(answer.get("agent"))
    return {name: _text(agent.get(name)) for name in ("name", "version")} if agent else None


def first_claim(answer: Mapping[str, Any]) -> str:
    """Return the capability that an agent which opened a new conversation was most likely asked to use."""
    claims = _object(answer.get("capabilities"))
    return LOAD if claims.get(LOAD) or not claims.get(RESUME) else RESUME


def load_known_capabilities(report: CapabilityReport) -> dict[str, AgentCapability]:
    """Return what is stored about this agent, by capability; one query."""
    agent = {"agent_type": report.agent_type, "agent_name": report.name, "agent_version": report.version}
    rows = AgentCapability.objects.filter(**agent)
    return {row.capability: row for row in rows}


def has_replayed(report: CapabilityReport) -> bool:
    """Whether this agent name and version has ever replayed a conversation by the capability used now.

    Under any agent type, because profiles of several types may run the same program. False for an agent without a
    name: another one without a name may be a different program. One query, or none.
    """
    if not report.tried or report.replayed or not report.name:
        return False
    same_agent = AgentCapability.objects.filter(agent_name=report.name, agent_version=report.version)
    return same_agent.filter(capability=report.tried, replayed_at__isnull=False).exists()


@dataclass(frozen=True, slots=True)
class CapabilityAssessment:
    """The conclusion from stored observations and one start."""

    supports_session_resume: bool | None
    """Whether resuming is expected to work; None: the agent claimed nothing either way."""
    note: str
    """One sentence for each claim that failed, or nothing."""
    rows: Mapping[str, AgentCapability]
    """The stored observations as they will be."""
    changed: frozenset[str]
    """The capabilities whose rows must be written."""
    is_new: bool
    """Whether nothing was stored about this version of the agent."""


def assess_capabilities(
    report: CapabilityReport, known: Mapping[str, AgentCapability], at: datetime
) -> CapabilityAssessment:
    """Return what to expect of the agent now and what to store. Writes nothing."""
    rows, changed = dict(known), set()
    for capability, claimed in report.claims.items():
        row = rows.get(capability) or AgentCapability(
            agent_type=report.agent_type, agent_name=report.name, agent_version=report.version, capability=capability
        )
        rows[capability] = row
        if _update_row(row, report, claimed, at):
            changed.add(capability)
    believed = [report.claims[name] and not is_refuted(rows[name]) for name in report.claims]
    failed = [rows[name] for name, claimed in report.claims.items() if claimed and is_broken(rows[name])]
    return CapabilityAssessment(
        supports_session_resume=any(believed) if believed else None,
        note=" ".join(map(explain_capability, failed)),
        rows=rows,
        changed=frozenset(changed),
        is_new=bool(report.claims) and not known,
    )


def _update_row(row: AgentCapability, report: CapabilityReport, claimed: bool, at: datetime) -> bool:
    """Update the row with this start's observations; returns whether it is worth a write."""
    fresh = row.last_seen_at is not None and at - row.last_seen_at < FRESH
    before = _gist(row)
    if proof := report.kept.get(row.capability):
        if proof not in _NO_PROOF or row.kept_proof in ("", *_NO_PROOF) or is_broken(row):
            row.kept_at, row.kept_proof = at, proof  # an unverified success does not replace a proof
    elif shortfall := report.broken.get(row.capability):
        row.broken_at, (row.broken_how, row.broken_said) = at, shortfall
    if report.replayed and report.tried == row.capability:
        row.replayed_at = at
    row.claimed, row.last_seen_at = claimed, at
    return not fresh or before != _gist(row)


def _gist(row: AgentCapability) -> tuple[Any, ...]:
    return (
        row.claimed,
        is_broken(row),
        row.broken_how,
        row.kept_at is not None,
        row.kept_proof,
        row.replayed_at is not None,
    )


def save_assessment(report: CapabilityReport, assessment: CapabilityAssessment) -> None:
    """Write what changed, in the caller's transaction: one upsert per capability, or nothing.

    Only observed columns are written: a concurrent start may have written what this one has not seen.
    """
    for name in sorted(assessment.changed):
        row, seen = assessment.rows[name], ["claimed", "last_seen_at"]
        seen += ("kept_at", "kept_proof") if name in report.kept else ()
        seen += ("replayed_at",) if report.replayed and report.tried == name else ()
        seen += ("broken_at", "broken_how", "broken_said") if name in report.broken else ()
        row.pk = uuid4()  # an existing row keeps its own id
        AgentCapability.objects.bulk_create(
            [row],
            update_conflicts=True,
            unique_fields=["agent_type", "agent_name", "agent_version", "capability"],
            update_fields=seen,
        )


def reset_for_new_version(profile: AgentProfile, but: ExecutorRunning) -> int:
    """Let sessions that an older version could not resume be tried again; returns how many.

    Only for a version that is seen for the first time. Rows that are being written are left to their own agent.
    """
    narrowed = ExecutorRunning.objects.filter(
        session__agent_profile__agent_type=profile.agent_type,
        session__agent_profile__command=profile.command,
        supports_session_resume=False,
    ).exclude(pk=but.pk)
    free = narrowed.select_for_update(skip_locked=True, of=("self",), no_key=True)
    chosen = list(free.values_list("pk", flat=True))
    return ExecutorRunning.objects.filter(pk__in=chosen).update(supports_session_resume=None, capability_note="")


def is_broken(row: AgentCapability) -> bool:
    """Whether the agent failed at the capability the last time that it was used."""
    return row.broken_at is not None and (row.kept_at is None or row.broken_at > row.kept_at)


def is_refuted(row: AgentCapability) -> bool:
    """Whether the agent itself reported that it does not support what it claims."""
    return is_broken(row) and row.broken_how == CapabilityShortfall.UNIMPLEMENTED


class CapabilityStanding(StrEnum):
    """What is known of a capability that an agent may claim."""

    NOT_SUPPORTED = "not supported"
    NOT_TRIED = "not tried"
    UNPROVEN = "unproven"
    OBSERVED = "observed"
    FAILED = "failed"


def capability_standing(row: AgentCapability) -> CapabilityStanding:
    """Return the standing of a capability, one of ``CapabilityStanding``."""
    if not row.claimed:
        return CapabilityStanding.NOT_SUPPORTED
    if is_broken(row):
        return CapabilityStanding.FAILED
    if row.kept_at is None:
        return CapabilityStanding.NOT_TRIED
    return CapabilityStanding.UNPROVEN if row.kept_proof in _NO_PROOF else CapabilityStanding.OBSERVED


def explain_capability(row: AgentCapability) -> str:
    """Return one sentence for users about what the agent supports and when that was observed."""
    who = f"{agent_title(row.agent_type)} {row.agent_version}".strip()
    what = CAPABILITIES.get(row.capability, row.capability)
    if not row.claimed:
        return f"{who} does not support {what}."
    if is_broken(row) and row.broken_at is not None:
        how = _HOW.get(row.broken_how, "it did not do so")
        return f"{who} claims to support {what}, but it failed on {_day(row.broken_at)}: {how}."
    if row.kept_at is not None and row.kept_proof in _NO_PROOF:
        return f"{who} claims to support {what} and reported success on {_day(row.kept_at)}, but nothing has proven it."
    if row.kept_at is not None:
        return f"{who} supports {what}, as observed on {_day(row.kept_at)}."
    return f"{who} claims to support {what}; it has not been tried."


def agent_title(name: str) -> str:
    """Return the title of an agent type, or its name if the type no longer exists."""
    try:
        return agent_type(name).title
    except UnknownPlugin:
        return name


def list_recent_capabilities(limit: int) -> Iterable[AgentCapability]:
    """Return capabilities that are claimed or once failed, most recently seen agents first; one query."""
    worth = AgentCapability.objects.filter(Q(claimed=True) | Q(broken_at__isnull=False))
    return worth.order_by("agent_type", "-last_seen_at", "agent_name", "agent_version", "capability")[:limit]


def _day(at: datetime) -> str:
    return f"{at.day} {at:%b %Y}"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _how(value: Any) -> str:
    return value if isinstance(value, str) and value in list(CapabilityShortfall) else CapabilityShortfall.ERROR.value


def _text(value: Any) -> str:
    return value.replace("\0", "")[:_TEXT_LIMIT] if isinstance(value, str) else ""


def _words(value: Any, secret: str) -> str:
    """Return an agent's text without the conversation id, which is a credential."""
    words = value if isinstance(value, str) else ""
    if secret:
        words = words.replace(secret, "…")
    return words.replace("\0", "")[:_SAID_LIMIT]
