"""What agents claim to support and what was observed, stored per team, profile, executor and version.

A claim counts as true until agentctl sees, on the same executor, that the agent does not support the request; any
other failure is only recorded. Another version counts as another agent, with no failures of its own yet. What agents
say about themselves decides nothing beyond their own team, profile and executor: an agent can report any name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID, uuid4

from django.db.models import Q, QuerySet

from executors_app.models import PROFILE_SECRETS, AgentCapability, AgentProfile, ExecutorRunning
from executors_app.plugins import UnknownPlugin, agent_type
from executors_app.wire.protocol import CapabilityShortfall

LOAD: Final = "load_session"
RESUME: Final = "resume_session"
CAPABILITIES: Final[Mapping[str, str]] = {LOAD: "session/load", RESUME: "session/resume"}
"""The capabilities by which an agent restores its conversation, with their ACP names."""
FRESH: Final = timedelta(hours=1)
"""Observations within this time are not written again: thousands of concurrent starts must not wait for one row."""
_NO_PROOF: Final = frozenset({"unproven", "pending", "none"})
"""Values of ``kept_proof`` for a success whose conversation was not verified."""
CUSTOM_TYPE: Final = "custom_acp"
"""The type of programs that only their profile knows, which are called by their own names."""
_NAME_LIMIT: Final = 60
_REPORTED_TEXT_LIMIT: Final = 200
_ERROR_TEXT_LIMIT: Final = 500
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
class CapabilityScope:
    """Whose sessions an observation is about."""

    team_id: int
    profile_id: UUID
    executor_id: UUID

    def fields(self) -> dict[str, Any]:
        """Return the scope as fields of ``AgentCapability``."""
        return {"team_id": self.team_id, "profile_id": self.profile_id, "executor_id": self.executor_id}


@dataclass(frozen=True, slots=True)
class CapabilityReport:
    """An agent's name and version as it reports them, and the outcome of its claims in one start."""

    scope: CapabilityScope
    agent_type: str
    name: str = ""
    version: str = ""
    title: str = ""
    """What it calls itself for people; empty: it names no title."""
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
    scope: CapabilityScope,
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
        scope=scope,
        agent_type=agent_type,
        name=_text(agent.get("name")),
        version=_text(agent.get("version")),
        title=_text(agent.get("title")),
        claims={name: claims[name] for name in CAPABILITIES if isinstance(claims.get(name), bool)},
        kept={name: proof for name, proof in (kept or {}).items() if name in CAPABILITIES},
        broken={**unkept, **{name: (how, _words(said, secret)) for name, (how, said) in (broken or {}).items()}},
        tried=_BY_OUTCOME.get(str(answer.get("outcome")), ""),
        replayed=bool(answer.get("replayed_user_texts")),
    )


def agent_identity(answer: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the agent's ``name``, ``version`` and ``title``, fit for the database; None if it reported none."""
    agent = _object(answer.get("agent"))
    if agent:
        return {name: _text(agent.get(name)) for name in ("name", "version", "title")}
    return None


def first_claim(answer: Mapping[str, Any]) -> str:
    """Return the capability that an agent which opened a new conversation was most likely asked to use."""
    claims = _object(answer.get("capabilities"))
    if claims.get(LOAD) or not claims.get(RESUME):
        return LOAD
    return RESUME


def load_known_capabilities(report: CapabilityReport) -> dict[str, AgentCapability]:
    """Return what is stored about this agent, by capability; one query."""
    return {row.capability: row for row in _rows_of_version(report)}


def _rows_of_version(report: CapabilityReport) -> QuerySet[AgentCapability]:
    return AgentCapability.objects.filter(**report.scope.fields(), agent_name=report.name, agent_version=report.version)


def has_replayed(report: CapabilityReport) -> bool:
    """Whether this agent name and version has ever replayed a conversation by the capability used now.

    Only for the same team, profile and executor: another team's agent, under whatever name, must not make the silence
    of this one a contradiction. False for an agent without a name. One query, or none.
    """
    if not report.tried or report.replayed or not report.name:
        return False
    return _rows_of_version(report).filter(capability=report.tried, replayed_at__isnull=False).exists()


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
            **report.scope.fields(),
            agent_type=report.agent_type,
            agent_name=report.name,
            agent_version=report.version,
            capability=capability,
        )
        rows[capability] = row
        if _update_row(row, report, claimed, at):
            changed.add(capability)
    believed = [report.claims[name] and not is_refuted(rows[name]) for name in report.claims]
    supports_resume = None
    if believed:
        supports_resume = any(believed)
    failed = [rows[name] for name, claimed in report.claims.items() if claimed and is_broken(rows[name])]
    return CapabilityAssessment(
        supports_session_resume=supports_resume,
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
    row.claimed, row.last_seen_at, row.agent_title = claimed, at, report.title
    return not fresh or before != _gist(row)


def _gist(row: AgentCapability) -> tuple[Any, ...]:
    return (
        row.claimed,
        row.agent_title,
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
        row, seen = assessment.rows[name], ["claimed", "last_seen_at", "agent_title"]
        if name in report.kept:
            seen += ["kept_at", "kept_proof"]
        if report.replayed and report.tried == name:
            seen += ["replayed_at"]
        if name in report.broken:
            seen += ["broken_at", "broken_how", "broken_said"]
        row.pk = uuid4()  # an existing row keeps its own id
        AgentCapability.objects.bulk_create(
            [row],
            update_conflicts=True,
            unique_fields=["team", "profile", "executor", "agent_name", "agent_version", "capability"],
            update_fields=seen,
        )


def reset_for_new_version(scope: CapabilityScope, but: ExecutorRunning) -> int:
    """Let sessions that an older version could not resume be tried again; returns how many.

    Only those of the same team, profile and executor, for a version that is seen there for the first time. Rows that
    are being written are left to their own agent.
    """
    narrowed = ExecutorRunning.objects.filter(
        session__task__team_id=scope.team_id,
        session__agent_profile_id=scope.profile_id,
        session__executor_id=scope.executor_id,
        supports_session_resume=False,
    ).exclude(pk=but.pk)
    free = narrowed.select_for_update(skip_locked=True, of=("self",), no_key=True)
    chosen = list(free.values_list("pk", flat=True))
    return ExecutorRunning.objects.filter(pk__in=chosen).update(supports_session_resume=None, capability_note="")


def is_broken(row: AgentCapability) -> bool:
    """Whether the agent failed at the capability the last time that it was used."""
    return row.broken_at is not None and (row.kept_at is None or row.broken_at > row.kept_at)


def is_refuted(row: AgentCapability) -> bool:
    """Whether agentctl saw the agent answer that it does not support what it claims."""
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
    if row.kept_proof in _NO_PROOF:
        return CapabilityStanding.UNPROVEN
    return CapabilityStanding.OBSERVED


def explain_capability(row: AgentCapability) -> str:
    """Return one sentence for users about what the agent supports and when that was observed."""
    return explain_capabilities([row])


def explain_capabilities(rows: Sequence[AgentCapability]) -> str:
    """Return what one agent supports, as ``explain_capability``; what is true of several capabilities is said once."""
    named: dict[str, list[str]] = {}
    for row in rows:
        named.setdefault(_predicate(row), []).append(CAPABILITIES.get(row.capability, row.capability))
    who = f"{own_title(rows[0].agent_type, rows[0].own_name)} {rows[0].agent_version}".strip()
    subjects = [who, *["It"] * (len(named) - 1)]
    predicates = [_fill_predicate(template, names) for template, names in named.items()]
    return " ".join(f"{subject} {predicate}." for subject, predicate in zip(subjects, predicates, strict=True))


def _fill_predicate(template: str, names: Sequence[str]) -> str:
    pronoun = "them"
    if len(names) == 1:
        pronoun = "it"
    return template.format(what=" and ".join(names), it=pronoun)


def group_by_agent(rows: Iterable[AgentCapability]) -> list[list[AgentCapability]]:
    """Return the capabilities of each agent together: of one program and version, in one place."""
    groups: dict[tuple[object, ...], list[AgentCapability]] = {}
    for row in rows:
        place = (row.team_id, row.profile_id, row.executor_id)
        groups.setdefault((*place, row.agent_type, row.agent_name, row.agent_version), []).append(row)
    return list(groups.values())


def _predicate(row: AgentCapability) -> str:
    """Return what is said about a capability, with ``{what}`` for its name and ``{it}`` for the pronoun."""
    if not row.claimed:
        return "does not support {what}"
    if is_broken(row) and row.broken_at is not None:
        how = _HOW.get(row.broken_how, "it did not do so")
        return f"announces {{what}}, but it failed on {_day(row.broken_at)}: {how}"
    if row.kept_at is not None and row.kept_proof in _NO_PROOF:
        return f"reported success with {{what}} on {_day(row.kept_at)}, which nothing could verify"
    if row.kept_at is not None:
        return f"supports {{what}}, as observed on {_day(row.kept_at)}"
    return "announces {what}. No restart has needed {it} yet"


def agent_title(name: str) -> str:
    """Return the title of an agent type, or its name if the type no longer exists."""
    try:
        return agent_type(name).title
    except UnknownPlugin:
        return name


def own_title(type_name: str, agent_name: str) -> str:
    """Return what a program is called: by its own title or name, if its type names none.

    ``agent_name`` is the agent's own word: on one line, of visible characters, and short.
    """
    if type_name != CUSTOM_TYPE:
        return agent_title(type_name)
    visible = "".join(character if character.isprintable() else " " for character in agent_name)
    return " ".join(visible.split())[:_NAME_LIMIT] or agent_title(type_name)


def own_title_in_team(profile: AgentProfile, team_id: int) -> str:
    """Return what the program of a profile is called in a team; one query for a custom agent, else none.

    What another team's program calls itself under the same profile says nothing about this one's.
    """
    if profile.agent_type != CUSTOM_TYPE:
        return agent_title(profile.agent_type)
    rows = AgentCapability.objects.filter(profile=profile, team_id=team_id).exclude(agent_name="", agent_title="")
    newest = rows.order_by("-last_seen_at").only("agent_name", "agent_title").first()
    if newest is None:
        return own_title(profile.agent_type, "")
    return own_title(profile.agent_type, newest.own_name)


def list_recent_capabilities(teams: QuerySet[Any], limit: int) -> Iterable[AgentCapability]:
    """Return what agents of ``teams`` claim, or once failed at, most recently seen agents first; one query."""
    of_teams = AgentCapability.objects.filter(team_id__in=teams.order_by().values("pk"))
    worth = of_teams.filter(Q(claimed=True) | Q(broken_at__isnull=False)).select_related("profile", "executor", "team")
    newest = worth.order_by("agent_type", "-last_seen_at", "agent_name", "agent_version", "capability")
    return newest.defer(*(f"profile__{name}" for name in PROFILE_SECRETS), "executor__config")[:limit]


def _day(at: datetime) -> str:
    return f"{at.day} {at:%b %Y}"


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    return {}


def _how(value: Any) -> str:
    if isinstance(value, str) and value in list(CapabilityShortfall):
        return value
    return CapabilityShortfall.ERROR.value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.replace("\0", "")[:_REPORTED_TEXT_LIMIT]
    return ""


def _words(value: Any, secret: str) -> str:
    """Return an agent's text without the conversation id, which is a credential."""
    if not isinstance(value, str):
        return ""
    words = value
    if secret:
        words = words.replace(secret, "…")
    return words.replace("\0", "")[:_ERROR_TEXT_LIMIT]
