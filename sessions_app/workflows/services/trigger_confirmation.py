"""The state that a user confirms before a workflow may start on a schedule, and how it has changed since."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings

from executors_app.encryption import SecretUnreadable
from executors_app.machine.costly_work import begin_costly_work
from executors_app.models import AgentProfile, Executor
from executors_app.plugins import UnknownPlugin
from sessions_app.agents.services.mcp_servers import inherited_servers
from sessions_app.agents.services.profiles import enabled, profiles_of
from sessions_app.confined.client import NOT_REACHED, PoolUnavailable
from sessions_app.confined.limits import Limits
from sessions_app.models import Repository
from sessions_app.rendering.operations.line_diffs import shown_lines
from sessions_app.rendering.pool import TEXT_POOL
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.models import Workflow
from sessions_app.workflows.nodes.agent import AgentSettings
from sessions_app.workflows.nodes.trigger import (
    Cron,
    CronError,
    WorkflowTriggers,
    parse_cron,
    trigger_settings_of,
)
from sessions_app.workflows.services.agent_choice import NoMatchingAgent, choose_agent
from sessions_app.workflows.services.run_records import iterate_nodes
from sessions_app.workflows.services.run_rights import default_executor

VERSION: Final = 1
"""Version of the form in which the parts are stored."""
TEXT_PART: Final = "text"
FILE_PART: Final = "file:"
AGENT_PART: Final = "agent:"
_DIGEST_LENGTH: Final = 16
_PART_NAMES: Final = {TEXT_PART: "text", "repository": "repository", "executor": "executor", "triggers": "triggers"}

ConfirmedParts = dict[str, str]
_IDLE_LINE: Final = re.compile(r"([0-9]{1,6}) minutes")
COMPARISON_LIMITS: Final = Limits(cpu_seconds=3.0, seconds=9.0, memory=512 << 20)
"""For all parts together."""
PART_CPU_SECONDS: Final = 0.5
_UNCOMPARED_LINES: Final = 200
"""Lines that are shown of the old and the new text of a part that could not be compared."""


def current_parts(row: Workflow, graph: WorkflowGraph | None, key: str = "") -> ConfirmedParts:
    """Return the parts of a workflow as it is now; without agents and triggers if its text is invalid.

    ``key`` is the secret key for the digests, by default the current one.
    """
    digester = _SecretDigester(key or str(settings.SECRET_KEY))
    parts: ConfirmedParts = {TEXT_PART: row.text}
    for path, text in sorted(row.files.items()):
        parts[f"{FILE_PART}{path}"] = text
    parts["repository"] = _repository(row.repository)
    parts["executor"] = _executor(default_executor(row.executor), digester)
    servers = _inherited_servers(row)
    if servers:
        parts["MCP servers"] = servers
    if graph is not None:
        parts |= _agents(row, graph, digester)
        parts["triggers"] = _triggers(graph)
    return parts


def serialize_parts(parts: ConfirmedParts) -> dict[str, Any]:
    """Return parts in the form of ``Workflow.confirmed``."""
    return {"version": VERSION, "parts": parts}


def confirmed_parts(row: Workflow) -> ConfirmedParts:
    """Return the parts that were confirmed last; empty if nobody has confirmed any."""
    parts: ConfirmedParts = row.confirmed.get("parts", {})
    return parts


def fingerprint_of(parts: ConfirmedParts) -> str:
    """Return a hash of all parts, with which a user confirms exactly the state that they have seen.

    They may have megabytes, so this is not for transactions.
    """
    begin_costly_work("a hash of a workflow")
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode(errors="surrogatepass")).hexdigest()


def changed_parts(row: Workflow, graph: WorkflowGraph | None) -> list[str]:
    """Return the names of the parts that differ from what was confirmed.

    Digests of earlier secret keys (SECRET_KEY_FALLBACKS) still match, so that a new key alone pauses nothing.
    """
    confirmed = confirmed_parts(row)
    changed: list[str] = []
    for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        current = current_parts(row, graph, str(key))
        different = [name for name in confirmed | current if confirmed.get(name) != current.get(name)]
        if not different:
            return []
        changed = changed or different
    return changed


def part_name(part: str) -> str:
    """Return the name of a part for users."""
    if part.startswith(FILE_PART):
        return f"file “{part.removeprefix(FILE_PART)}”"
    if part.startswith(AGENT_PART):
        runner, model = json.loads(part.removeprefix(AGENT_PART))
        label = "agent for steps without a runner"
        if runner:
            label = f"agent for “{runner}”"
        if model:
            return f"{label} with the model “{model}”"
        return label
    return _PART_NAMES.get(part, part)


class _SecretDigester:
    """Computes digests of secret values, so that a change is detected and no value is shown."""

    def __init__(self, key: str):
        self._key = hashlib.sha256(f"kandev workflow confirmation:{key}".encode()).digest()

    def digest(self, value: Any) -> str:
        text = json.dumps(value, sort_keys=True, default=str).encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()[:_DIGEST_LENGTH]


def _format_lines(values: Mapping[str, Any]) -> str:
    lines = [f"{name}: {value}" for name, value in values.items() if value not in (None, "", [])]
    return "\n".join(lines)


def _repository(row: Repository | None) -> str:
    if row is None:
        return ""
    values = {"id": row.pk, "name": row.name, "path": row.path, "branch": row.default_branch}
    return _format_lines({**values, "base of new tasks": row.default_base})


def _executor(row: Executor | None, digester: _SecretDigester) -> str:
    if row is None:
        return ""
    try:
        isolated = "no" if row.trusted_agents_only else "yes"
    except UnknownPlugin:
        isolated = "unknown"
    settings_digest = digester.digest(row.config) if row.config else ""
    return _format_lines(
        {"id": row.pk, "name": row.name, "runtime": row.runtime, "isolated": isolated, "settings": settings_digest}
    )


def _inherited_servers(row: Workflow) -> str:
    """Return the MCP servers that repository and team give to all agents; they contain no secret."""
    lines = []
    for level, servers in inherited_servers(row.team_id, row.repository_id).items():
        lines += [f"{level}: {json.dumps(server, sort_keys=True)}" for server in servers]
    return "\n".join(sorted(lines))


def _agents(row: Workflow, graph: WorkflowGraph, digester: _SecretDigester) -> ConfirmedParts:
    """Return the profile that each kind of agent node would get now."""
    agents = [node.settings for node in iterate_nodes(graph.root) if isinstance(node.settings, AgentSettings)]
    kinds = sorted({(agent.runner or "", agent.model or "") for agent in agents})
    if not kinds:
        return {}
    profiles = list(enabled(profiles_of(row.team_id)).order_by("name", "id"))
    parts: ConfirmedParts = {}
    for runner, model in kinds:
        try:
            choice = choose_agent(profiles, row.agent_profile, runner, model)
            profile_text = _profile(choice.profile, digester)
        except NoMatchingAgent:
            profile_text = "no agent profile matches"
        parts[f"{AGENT_PART}{json.dumps([runner, model])}"] = profile_text
    return parts


def _profile(row: AgentProfile, digester: _SecretDigester) -> str:
    return _format_lines(
        {
            "id": row.pk,
            "name": row.name,
            "type": row.agent_type,
            "command": shlex.join(map(str, row.command)),
            "arguments": shlex.join(map(str, row.args)),
            "model": row.model,
            "mode": row.mode,
            "permissions": row.permission_mode,
            "directories": shlex.join(map(str, row.additional_directories)),
            "environment": _secret(row, "env", digester),
            "MCP servers": _secret(row, "mcp_servers", digester),
        }
    )


def _secret(row: AgentProfile, field: str, digester: _SecretDigester) -> str:
    """Return the names in an encrypted field, and a digest of all of it."""
    try:
        value = getattr(row, field)
    except SecretUnreadable:
        return "cannot be read"
    if not value:
        return ""
    if isinstance(value, dict):
        names = sorted(value)
    else:
        names = [str(server.get("name")) for server in value]
    return f"{', '.join(names)} ({digester.digest(value)})"


def _triggers(graph: WorkflowGraph) -> str:
    crons, idle = [], []
    for trigger in trigger_settings_of(graph):
        if trigger.trigger_type == "cron":
            crons.append(f"cron: {trigger.cron}")
        elif trigger.trigger_type == "idle":
            idle.append(f"idle: {trigger.idle_minutes} minutes")
    return "\n".join(sorted(crons) + sorted(idle))


def parse_triggers(text: str) -> WorkflowTriggers | None:
    """Return the triggers of a confirmed part ``triggers``; None if they cannot be read from it."""
    crons: list[Cron] = []
    minutes: list[int] = []
    for line in filter(None, text.split("\n")):
        kind, _, value = line.partition(": ")
        if kind == "cron":
            try:
                crons.append(parse_cron(value))
            except CronError:  # it may contain line ends
                return None
        elif kind == "idle" and (idle := _IDLE_LINE.fullmatch(value)):
            minutes.append(int(idle[1]))
        else:
            return None
    return WorkflowTriggers.of(crons, minutes)


@dataclass(frozen=True, slots=True)
class PartDifference:
    """The difference of one part. Lines begin with ``+``, ``-`` or a blank; ``…`` stands for omitted equal lines."""

    part: str
    name: str
    lines: tuple[str, ...]
    is_cut: bool = False
    """Whether the difference is longer than what is shown."""

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


def compare_parts(before: ConfirmedParts, after: ConfirmedParts, owner: str) -> list[PartDifference]:
    """Return the differences of all changed parts, in the order of ``after``, then those of removed parts.

    A part that takes too long to compare is shown as removed and added, and cut. ``owner`` is whose texts they are, for
    ``TEXT_POOL``.
    """
    changed = [name for name in after | before if before.get(name) != after.get(name)]
    pairs = [{"before": before.get(name, ""), "after": after.get(name, "")} for name in changed]
    try:
        outcomes = TEXT_POOL.run_batch(
            "compared_texts", pairs, owner=owner, limits=COMPARISON_LIMITS, item_cpu_seconds=PART_CPU_SECONDS
        )
    except PoolUnavailable:
        outcomes = [NOT_REACHED] * len(pairs)
    differences = []
    for name, pair, outcome in zip(changed, pairs, outcomes, strict=True):
        if outcome.result:
            lines, is_cut = outcome.result["lines"], outcome.result["is_cut"]
        else:
            lines, is_cut = _uncompared_lines(pair["before"], pair["after"]), True
        differences.append(PartDifference(name, part_name(name), tuple(lines), is_cut))
    return differences


def _uncompared_lines(before: str, after: str) -> list[str]:
    """Return the first lines of both texts, as if all had been removed and added."""
    lines = [f"-{line}" for line in _first_lines(before)]
    lines += [f"+{line}" for line in _first_lines(after)]
    shown: list[str] = shown_lines(lines)["lines"]
    return shown


def _first_lines(text: str) -> list[str]:
    if not text:
        return []
    return text.split("\n", _UNCOMPARED_LINES)[:_UNCOMPARED_LINES]
