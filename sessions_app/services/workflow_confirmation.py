"""What somebody confirms who lets a workflow start by itself: everything that decides what its runs do.

It is described as *parts*, texts by name: the workflow's text and files, its repository, the executor, the agent
profile of each kind of agent node, and its triggers. Where one part differs from what was confirmed, nothing is
started until somebody entitled has seen the difference. Secrets are there as keyed digests, so that a change of one
shows and its value does not.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings

from executors_app.encryption import SecretUnreadable
from executors_app.models import AgentProfile, Executor
from executors_app.plugins import UnknownPlugin
from sessions_app.models import Repository, Workflow
from sessions_app.services.catalogue import profiles_of
from sessions_app.services.workflow_rights import place_of
from sessions_app.services.workflow_rows import all_nodes
from sessions_app.services.workflow_runners import NoSuchAgent, choose
from sessions_app.workflows.graph import Workflow as Graph
from sessions_app.workflows.nodes.agent import AgentSettings
from sessions_app.workflows.nodes.trigger import TriggerSettings

VERSION: Final = 1
"""Of the parts. 0: only text and files, noted when schedules of an earlier release were taken over."""
TEXT: Final = "text"
FILE: Final = "file:"
AGENT: Final = "agent:"
_DIGITS: Final = 16
_NAMES: Final = {TEXT: "text", "repository": "repository", "executor": "executor", "triggers": "triggers"}

Parts = dict[str, str]


def parts_of(row: Workflow, graph: Graph | None, key: str = "") -> Parts:
    """The parts of a workflow as it is now; of a text that cannot be run neither agents nor triggers.

    ``key`` is the secret key that digests are made with, by default the present one.
    """
    seal = _Seal(key or str(settings.SECRET_KEY))
    return {
        TEXT: row.text,
        **{f"{FILE}{path}": text for path, text in sorted(row.files.items())},
        "repository": _repository(row.repository),
        "executor": _executor(place_of(row.executor), seal),
        **(_agents(row, graph, seal) if graph else {}),
        **({"triggers": _triggers(graph)} if graph else {}),
    }


def noted(parts: Parts) -> dict[str, Any]:
    """Parts as ``Workflow.confirmed`` keeps them."""
    return {"version": VERSION, "parts": parts}


def confirmed_parts(row: Workflow) -> Parts:
    """What was confirmed last; nothing where nobody ever did."""
    parts: Parts = row.confirmed.get("parts", {})
    return parts


def fingerprint_of(parts: Parts) -> str:
    """Names all parts in 64 characters: who confirms says which state they have seen."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode(errors="surrogatepass")).hexdigest()


def changed_parts(row: Workflow, graph: Graph | None) -> list[str]:
    """The names of the parts that are not as they were confirmed.

    Digests made with an earlier secret key are still known, so that a new key alone pauses nothing.
    """
    confirmed, found = confirmed_parts(row), list[str]()
    for key in (str(settings.SECRET_KEY), *map(str, settings.SECRET_KEY_FALLBACKS)):
        now = _comparable(parts_of(row, graph, key), row)
        different = [name for name in {**confirmed, **now} if confirmed.get(name) != now.get(name)]
        if not different:
            return []
        found = found or different
    return found


def _comparable(parts: Parts, row: Workflow) -> Parts:
    if row.confirmed.get("version", VERSION) > 0:
        return parts
    return {name: text for name, text in parts.items() if name == TEXT or name.startswith(FILE)}


def name_of(part: str) -> str:
    """What people call a part."""
    if part.startswith(FILE):
        return f"file “{part.removeprefix(FILE)}”"
    if part.startswith(AGENT):
        runner, model = json.loads(part.removeprefix(AGENT))
        words = f"agent of “{runner}”" if runner else "agent of nodes without a runner"
        return f"{words} with the model “{model}”" if model else words
    return _NAMES.get(part, part)


class _Seal:
    """Makes digests of what nobody is shown."""

    def __init__(self, key: str):
        self._key = hashlib.sha256(f"kandev workflow confirmation:{key}".encode()).digest()

    def of(self, value: Any) -> str:
        text = json.dumps(value, sort_keys=True, default=str).encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()[:_DIGITS]


def _lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in values.items() if value not in (None, "", []))


def _repository(row: Repository | None) -> str:
    if row is None:
        return ""
    return _lines({"id": row.pk, "name": row.name, "path": row.path, "branch": row.default_branch})


def _executor(row: Executor | None, seal: _Seal) -> str:
    if row is None:
        return ""
    try:
        isolated = "no" if row.trusted_agents_only else "yes"
    except UnknownPlugin:
        isolated = "unknown"
    settings_digest = seal.of(row.config) if row.config else ""
    return _lines(
        {"id": row.pk, "name": row.name, "runtime": row.runtime, "isolated": isolated, "settings": settings_digest}
    )


def _agents(row: Workflow, graph: Graph, seal: _Seal) -> Parts:
    """The profile that each kind of agent node would get now."""
    nodes = [node.settings for node in all_nodes(graph.root) if isinstance(node.settings, AgentSettings)]
    wanted = sorted({(one.runner or "", one.model or "") for one in nodes})
    profiles = list(profiles_of(row.team_id).order_by("name", "id")) if wanted else []
    found: Parts = {}
    for runner, model in wanted:
        try:
            told = _profile(choose(profiles, row.agent_profile, runner, model).profile, seal)
        except NoSuchAgent:
            told = "none fits"
        found[f"{AGENT}{json.dumps([runner, model])}"] = told
    return found


def _profile(row: AgentProfile, seal: _Seal) -> str:
    return _lines(
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


def _secret(row: AgentProfile, field: str, seal: _Seal) -> str:
    """The names in an encrypted field, and a digest of the whole."""
    try:
        value = getattr(row, field)
    except SecretUnreadable:
        return "cannot be read"
    names = sorted(value) if isinstance(value, dict) else [str(one.get("name")) for one in value]
    return f"{', '.join(names)} ({seal.of(value)})" if value else ""


def _triggers(graph: Graph) -> str:
    found = [node.settings for node in graph.root.nodes.values() if isinstance(node.settings, TriggerSettings)]
    crons = sorted(f"cron: {one.cron}" for one in found if one.trigger_type == "cron")
    idle = sorted(f"idle: {one.idle_minutes} minutes" for one in found if one.trigger_type == "idle")
    return "\n".join([*crons, *idle])
