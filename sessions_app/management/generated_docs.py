"""Every document that is made of the code, as text: what ``manage.py write_docs`` writes."""

from __future__ import annotations

import json
import shlex

from django.utils.module_loading import import_string

from executors_app.agents import AgentType
from executors_app.crash_points import CRASH_POINTS
from executors_app.plugins import agent_types
from sessions_app.domain.reference_docs import build_documents as rule_documents
from sessions_app.domain.reference_docs import markdown_table
from sessions_app.workflows.loader.graph_json import workflow_json_schema

SETTINGS_DOCUMENT = "kandev.settings_document.settings_documents"
"""By name: the project lies above its applications, which never import it."""

_AGENTS_HEADER = """\
# Agent types

<!-- Written by `manage.py write_docs`. Change executors_app/agents/, not this file. -->

One file of [executors_app/agents](../executors_app/agents) each; [extend.md](extend.md) says how to add one. An agent \
profile may name another command (staff only), add arguments, an environment and a model.

- *Load*: may take its own conversation up again, with ACP `session/load`, or `session/resume` where there is no load. \
What the running agent says of itself can only narrow this.
What an agent claims and does not keep is remembered by its type, name and version (`agent_capabilities`; on the page \
*Agents* and in the admin): a load that brought no history or another one, an error, no answer, a method that it \
says it does not have. Only the last of these, its own word, takes the claim from it, and the next prompt is then the \
consent to go on without; all of them are told where it is said how a session resumes. Another version begins anew: \
what its predecessor could not resume is tried with it.
- *Told history*: where it cannot, what was said so far is told with the next prompt.
- *Known to replay*: a load that replays no user message then contradicts our journal, and a user decides. So it does \
where an agent of this name and version has ever replayed anything; of any other agent it is *unproven*.
- *Gone*: what it says when it no longer has the conversation. These words set its token aside, unless its own \
`session/list` shows the conversation all the same. So does, of every ACP agent, error -32002 that names the \
conversation, and what a profile adds in `gone_patterns`, a list of regular expressions. Of a type without such \
words a failed load does so if that list has others and not this one. After any other failure the token stays \
and the load is tried again."""

_KILL_POINTS_HEADER = """\
## What a kill between two lines leaves

Tests can kill a process at each of these points (`KANDEV_CRASH_AT`). `make test-all` kills at every one of them, \
`make chaos` in every process that stands there, with every misbehaviour of an agent that is known, and at 200 random \
moments. Afterwards no prompt has come to an agent twice, no event is lost or there twice (a prefix where agentctl \
or the agent itself was killed in a turn), no process is left, no run is interrupted twice, no state and no move \
is outside [the tables](states.md), and each start that was carried out has one receipt. *recover_sessions* stands \
where the supervisor does. The worker keeps nothing of a session; it is killed at random."""

_SEED_HEADER = """\
## Beside the seed

Kandev began from a design document, the *seed*, with a table of agents. This is what it says, and why ours is another \
where it is."""


def generate_documents() -> dict[str, str]:
    """File name in ``docs/`` and its text."""
    settings_documents = import_string(SETTINGS_DOCUMENT)
    rules = rule_documents()
    rules["recovery.md"] += f"\n{kill_points_document()}\n"
    schema = json.dumps(workflow_json_schema(), indent=2, ensure_ascii=False) + "\n"
    return {**rules, **settings_documents(), "agents.md": agents_document(), "workflow.schema.json": schema}


def kill_points_document() -> str:
    """Every crash point: who stands there, between which steps, and what the next start does."""
    head = ("crash point", "processes", "done", "not done", "what happens then")
    rows = [(f"`{point.name}`", ", ".join(point.processes), *point.steps, point.next) for point in CRASH_POINTS]
    return f"{_KILL_POINTS_HEADER}\n\n{markdown_table(head, rows)}"


def agents_document() -> str:
    """Every agent type, and the seed's word beside ours."""
    kinds = sorted(agent_types().values(), key=lambda kind: kind.title)
    head = ("type", "agent", "command", "install", "protocol", "load", "told history", "known to replay", "gone")
    seed_head = ("type", "load, by the seed", "load", "history, by the seed", "history", "the seed says", "why ours")
    parts = [
        _AGENTS_HEADER,
        markdown_table(head, [_type_row(kind) for kind in kinds]),
        "## Notes",
        "\n".join(f"- **{kind.title}**: {kind.notes}" for kind in kinds if kind.notes),
        _SEED_HEADER,
        markdown_table(seed_head, [_seed_row(kind) for kind in kinds if kind.seed]),
    ]
    return "\n\n".join(parts) + "\n"


def _type_row(kind: AgentType) -> tuple[str, ...]:
    gone = ", ".join(f"`{pattern}`" for pattern in kind.gone_patterns)
    errs = " (also when it is not)" if kind.errs_about_gone else ""
    return (
        f"`{kind.name}`",
        kind.title,
        _command(kind),
        f"`{kind.install}`" if kind.install else "–",
        kind.driver,
        _yes_or_no(kind.supports_session_resume),
        _yes_or_no(kind.history_context_injection),
        _yes_or_no(kind.replays_on_load),
        gone + errs or "–",
    )


def _command(kind: AgentType) -> str:
    if not kind.argv:
        return "the profile's"
    return f"`{shlex.join(kind.argv)}`" if kind.needs else "ships with Kandev"


def _seed_row(kind: AgentType) -> tuple[str, ...]:
    assert kind.seed is not None  # noqa: S101  (the caller has looked)
    return (
        f"`{kind.name}`",
        _yes_or_no(kind.seed.native),
        _yes_or_no(kind.supports_session_resume),
        _yes_or_no(kind.seed.history),
        _yes_or_no(kind.history_context_injection),
        kind.seed.notes,
        kind.differs_from_seed or "the same",
    )


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
