"""What a user confirms before a workflow may start by itself, and what has changed since."""

from __future__ import annotations

import difflib
import hashlib
import hmac
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings

from executors_app.encryption import SecretUnreadable
from executors_app.models import AgentProfile, Executor
from executors_app.plugins import UnknownPlugin
from sessions_app.domain.sanitizing import make_visible
from sessions_app.models import Repository
from sessions_app.services.catalogue import profiles_of
from sessions_app.workflows.language.graph import WorkflowGraph as Graph
from sessions_app.workflows.models import Workflow
from sessions_app.workflows.nodes.agent import AgentSettings
from sessions_app.workflows.nodes.trigger import TriggerSettings
from sessions_app.workflows.services.assignment import NoMatchingAgent, choose_agent, default_executor
from sessions_app.workflows.services.run_records import iterate_nodes

VERSION: Final = 1
"""Of the parts. 0: only text and files, noted when schedules of an earlier release were taken over."""
TEXT_PART: Final = "text"
FILE_PART: Final = "file:"
AGENT_PART: Final = "agent:"
_DIGEST_LENGTH: Final = 16
_PART_NAMES: Final = {TEXT_PART: "text", "repository": "repository", "executor": "executor", "triggers": "triggers"}

ConfirmedParts = dict[str, str]


def current_parts(row: Workflow, graph: Graph | None, key: str = "") -> ConfirmedParts:
    """The parts of a workflow as it is now; of a text that cannot be run neither agents nor triggers.

    ``key`` is the secret key that digests are made with, by default the present one.
    """
    seal = _SecretDigester(key or str(settings.SECRET_KEY))
    return {
        TEXT_PART: row.text,
        **{f"{FILE_PART}{path}": text for path, text in sorted(row.files.items())},
        "repository": _repository(row.repository),
        "executor": _executor(default_executor(row.executor), seal),
        **(_agents(row, graph, seal) if graph else {}),
        **({"triggers": _triggers(graph)} if graph else {}),
    }


def serialize_parts(parts: ConfirmedParts) -> dict[str, Any]:
    """Parts as ``Workflow.confirmed`` keeps them."""
    return {"version": VERSION, "parts": parts}


def confirmed_parts(row: Workflow) -> ConfirmedParts:
    """What was confirmed last; nothing where nobody ever did."""
    parts: ConfirmedParts = row.confirmed.get("parts", {})
    return parts


def fingerprint_of(parts: ConfirmedParts) -> str:
    """Names all parts in 64 characters: who confirms says which state they have seen."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode(errors="surrogatepass")).hexdigest()


def changed_parts(row: Workflow, graph: Graph | None) -> list[str]:
    """The names of the parts that are not as they were confirmed.

    Digests made with an earlier secret key are still known, so that a new key alone pauses nothing.
    """
    confirmed, found = confirmed_parts(row), list[str]()
    for key in (str(settings.SECRET_KEY), *map(str, settings.SECRET_KEY_FALLBACKS)):
        now = _comparable_parts(current_parts(row, graph, key), row)
        different = [name for name in {**confirmed, **now} if confirmed.get(name) != now.get(name)]
        if not different:
            return []
        found = found or different
    return found


def _comparable_parts(parts: ConfirmedParts, row: Workflow) -> ConfirmedParts:
    if row.confirmed.get("version", VERSION) > 0:
        return parts
    return {name: text for name, text in parts.items() if name == TEXT_PART or name.startswith(FILE_PART)}


def part_name(part: str) -> str:
    """What people call a part."""
    if part.startswith(FILE_PART):
        return f"file “{part.removeprefix(FILE_PART)}”"
    if part.startswith(AGENT_PART):
        runner, model = json.loads(part.removeprefix(AGENT_PART))
        words = f"agent of “{runner}”" if runner else "agent of nodes without a runner"
        return f"{words} with the model “{model}”" if model else words
    return _PART_NAMES.get(part, part)


class _SecretDigester:
    """Makes digests of what nobody is shown."""

    def __init__(self, key: str):
        self._key = hashlib.sha256(f"kandev workflow confirmation:{key}".encode()).digest()

    def of(self, value: Any) -> str:
        text = json.dumps(value, sort_keys=True, default=str).encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()[:_DIGEST_LENGTH]


def _format_lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in values.items() if value not in (None, "", []))


def _repository(row: Repository | None) -> str:
    if row is None:
        return ""
    return _format_lines({"id": row.pk, "name": row.name, "path": row.path, "branch": row.default_branch})


def _executor(row: Executor | None, seal: _SecretDigester) -> str:
    if row is None:
        return ""
    try:
        isolated = "no" if row.trusted_agents_only else "yes"
    except UnknownPlugin:
        isolated = "unknown"
    settings_digest = seal.of(row.config) if row.config else ""
    return _format_lines(
        {"id": row.pk, "name": row.name, "runtime": row.runtime, "isolated": isolated, "settings": settings_digest}
    )


def _agents(row: Workflow, graph: Graph, seal: _SecretDigester) -> ConfirmedParts:
    """The profile that each kind of agent node would get now."""
    nodes = [node.settings for node in iterate_nodes(graph.root) if isinstance(node.settings, AgentSettings)]
    wanted = sorted({(agent.runner or "", agent.model or "") for agent in nodes})
    profiles = list(profiles_of(row.team_id).order_by("name", "id")) if wanted else []
    found: ConfirmedParts = {}
    for runner, model in wanted:
        try:
            told = _profile(choose_agent(profiles, row.agent_profile, runner, model).profile, seal)
        except NoMatchingAgent:
            told = "none fits"
        found[f"{AGENT_PART}{json.dumps([runner, model])}"] = told
    return found


def _profile(row: AgentProfile, seal: _SecretDigester) -> str:
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
            "environment": _secret(row, "env", seal),
            "MCP servers": _secret(row, "mcp_servers", seal),
        }
    )


def _secret(row: AgentProfile, field: str, seal: _SecretDigester) -> str:
    """The names in an encrypted field, and a digest of the whole."""
    try:
        value = getattr(row, field)
    except SecretUnreadable:
        return "cannot be read"
    names = sorted(value) if isinstance(value, dict) else [str(server.get("name")) for server in value]
    return f"{', '.join(names)} ({seal.of(value)})" if value else ""


def _triggers(graph: Graph) -> str:
    found = [node.settings for node in graph.root.nodes.values() if isinstance(node.settings, TriggerSettings)]
    crons = sorted(f"cron: {trigger.cron}" for trigger in found if trigger.trigger_type == "cron")
    idle = sorted(f"idle: {trigger.idle_minutes} minutes" for trigger in found if trigger.trigger_type == "idle")
    return "\n".join([*crons, *idle])


CONTEXT: Final = 3
"""Lines around a change."""
MAX_COMPARISON_SIZE: Final = 250_000
"""Lines before times lines after, up to which they are compared line by line: that is quadratic at worst."""
LINE_LIMIT: Final = 1_000
"""Characters of a line."""
MAX_SHOWN_LINES: Final = 2_000
"""Of one part."""


@dataclass(frozen=True, slots=True)
class PartDifference:
    """What has become of one part. ``lines`` begin with ``+``, ``-`` or a blank; ``…`` stands for what is the same."""

    part: str
    name: str
    lines: tuple[str, ...]
    is_cut: bool = False
    """There is more than is shown."""

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


def compare_parts(before: ConfirmedParts, after: ConfirmedParts) -> list[PartDifference]:
    """Every part that is not the same, in the order of ``after``, then what is gone."""
    names = [*after, *(name for name in before if name not in after)]
    return [
        _compare_part(name, before.get(name, ""), after.get(name, ""))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _compare_part(part: str, before: str, after: str) -> PartDifference:
    lines = _diff_lines(_split_lines(before), _split_lines(after))
    shown = tuple(_escape_invisible(line) for line in lines[:MAX_SHOWN_LINES])
    is_cut = len(lines) > MAX_SHOWN_LINES or any(len(line) > LINE_LIMIT for line in lines)
    return PartDifference(part, part_name(part), shown, is_cut)


def _split_lines(text: str) -> list[str]:
    return text.split("\n") if text else []


def _diff_lines(before: list[str], after: list[str]) -> list[str]:
    begin, end = _common_prefix_and_suffix(before, after)
    old, new = before[begin : len(before) - end], after[begin : len(after) - end]
    if len(old) * len(new) > MAX_COMPARISON_SIZE:
        return [*(f"-{line}" for line in old), *(f"+{line}" for line in new)]
    first, rest = max(begin - CONTEXT, 0), max(end - CONTEXT, 0)
    around = before[first : len(before) - rest], after[first : len(after) - rest]
    told = list(difflib.unified_diff(*around, n=CONTEXT, lineterm=""))[3:]  # two names, and the first place
    return ["…" if line.startswith("@@") else line for line in told]


def _common_prefix_and_suffix(before: list[str], after: list[str]) -> tuple[int, int]:
    """How many lines are the same at the beginning and at the end: all that is common, where little was changed."""
    most, begin, end = min(len(before), len(after)), 0, 0
    while begin < most and before[begin] == after[begin]:
        begin += 1
    while end < most - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    return begin, end


def _escape_invisible(line: str) -> str:
    """Characters that show nothing, or turn the direction of others, are written out."""
    cut = line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]}… ({len(line) - LINE_LIMIT} more characters)"
    return "".join(
        character if character.isprintable() or character == "\t" else _character_name(character) for character in cut
    )


def _character_name(character: str) -> str:
    shown = make_visible(character)
    return shown if shown not in (character, "\n") else f"⟦{ord(character):X}⟧"
