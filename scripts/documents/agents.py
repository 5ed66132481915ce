"""docs/agents.md: the types of agents, and how they differ from the seed."""

from __future__ import annotations

import html
import shlex

from executors_app.agents import CAPABILITIES, AgentType, Coverage, UsageReport
from executors_app.plugins import agent_types
from scripts.documents.markdown import markdown_table

_AGENTS_HEADER = """\
# Agent types

<!-- Written by `make docs`. Change executors_app/agents/, not this file. -->

Kandev knows these agents: every one of the [ACP registry](https://agentclientprotocol.com/get-started/registry) and \
some others. Each is an entry of a table in [executors_app/agents](../executors_app/agents); [extend.md](extend.md) \
explains how to add one. An agent profile may name another command (staff only) and add arguments, environment \
variables and a model. The page *Agents*, the admin and the API list the agents that are installed on Kandev's machine \
first. An empty cell means unknown; you can still use the agent."""

_OFFERS_HEADER = """\
## What they offer

What each agent offers for its conversations; an empty cell means unknown. *Measured*: this repository's tests have \
observed it in this version. *Published*: taken from the protocol matrix of the ACP registry (August 2026) or from the \
vendor's documentation, and not tested here. Kandev asks the running agent at each start and relies only on its \
answer. How the agents that were tested here behave in practice, and what Kandev reports after agent and Kandev were \
killed, is in the [agent matrix](agent-matrix.md), which `make agent-matrix` and `make agent-drills` write.

*Steering*: whether it takes [a prompt into the turn that is running]\
(operate/work.md#send-a-prompt-to-the-turn-that-is-running), by announcing `_session/steering`. Each agent with a \
*yes* was given one during a turn, and each with a *no* was started and announced nothing. The demo agent takes \
prompts, too; the command line agents and chat models take none."""

_USAGE_HEADER = """\
## What their figures count

What the [usage](operate/usage.md) that an agent reports counts: its *turn*, everything since its *conversation* \
began, or everything since its *process* began. Where that is a conversation or a process, a turn has used what it \
adds. If a new process may have taken over what the one before had counted, the cost of its first turn is unknown. \
Figures of agents that are not in this table are shown and not summed. Each row is tested with the agent itself, \
except `openai_chat`, whose API counts each request."""

_RESUME_HEADER = """\
## How they resume

- *Load*: the agent can resume its own conversation, with ACP `session/load`, or with `session/resume` if it does not \
support load. What the running agent reports about itself can only narrow this. \
If an agent does not do what it claims, this is recorded for its team, profile, executor and version (see the \
page *Agents* and the admin): a load that returned no history or a different one, an error, no answer, or a method \
that it reports as not supported. Only the last of these withdraws the claim; sending the next prompt is then the \
consent to continue without it. All of them are shown where a page explains how a session resumes. Another version \
starts over: what its predecessor could not resume is tried again.
- *Told history*: if the agent cannot resume, the next prompt includes the conversation so far.
- *Known to replay*: a load that replays no user message contradicts the journal, and a user has to decide. The same \
holds once an agent of this name and version has replayed anything; for any other agent such a load is *unproven*.
- *Gone*: the phrases with which the agent reports that a conversation no longer exists. Its resume token is then set \
aside, unless the agent's own `session/list` still shows the conversation. The same applies, for every ACP agent, to \
an error that names the conversation, with any code, unless it also names a hindrance that \
may pass; and to the regular expressions that a profile adds in `gone_patterns`. For a type without such phrases, a \
failed load sets the token aside if that list has other conversations and not this one. \
After any other failure the token stays, and the load is retried. An agent that reports success and replays nothing is \
asked for that list, too: if the list has other conversations and not this one, a user has to decide.

Other errors need no phrases for each type, because all agents report them alike: ACP error -32000 and the usual \
phrases for *not logged in*, a program that is not on `PATH` for *not installed*, and the messages of providers about \
limits and outages (429, *rate limit*, *overloaded* and the like).

An agent that speaks ACP can ask people [questions](operate/work.md#questions-of-agents) by form and by link \
(`elicitation`), and can take back a question or a permission request with `$/cancel_request`."""

_DECLINED = """\
## Parts of ACP that Kandev does not support

When an ACP agent starts, Kandev declares that it supports neither `fs/*` nor `terminal/*`, and it answers such a \
request with *method not found*. Agents then use their own tools. Version 2 of the protocol removes both.

- `fs/read_text_file` and `fs/write_text_file` let an editor serve files that it has open with unsaved changes. Kandev \
has no such editor: the files on disk are always current. Served by agentctl, these requests would also bypass the \
sandbox in which the agent runs.
- `terminal/*` lets an editor run the agent's commands where its user sees them. The agent's own tools run them in its \
process tree and in its sandbox, and a stop ends them together with the agent. Commands run by agentctl would be \
outside both."""

_SEED_HEADER = """\
## Differences from the seed

Kandev began from a design document, the *seed*, with a table of agents. This table shows what the seed says, and why \
Kandev differs from it."""


def agents_document() -> str:
    """Return the page about agent types, with the differences from the seed."""
    kinds = sorted(agent_types().values(), key=lambda kind: kind.title.casefold())
    head = ("type", "agent", "command", "protocol", "install", "log in", "API key", "conversations")
    offers_head = ("type", "known", *(f"`{name}`" for name in CAPABILITIES), "steering")
    usage_head = ("type", "tokens", "cost", "tokens in")
    resume_head = ("type", "load", "told history", "known to replay", "gone")
    seed_head = ("type", "load, by the seed", "load", "history, by the seed", "history", "the seed says", "why ours")
    parts = [
        _AGENTS_HEADER,
        markdown_table(head, [_type_row(kind) for kind in kinds]),
        _OFFERS_HEADER,
        markdown_table(offers_head, [_offers_row(kind) for kind in kinds if kind.driver == "acp" and kind.needs]),
        _USAGE_HEADER,
        markdown_table(usage_head, [_usage_row(kind) for kind in kinds if kind.usage != UsageReport()]),
        _RESUME_HEADER,
        markdown_table(resume_head, [_resume_row(kind) for kind in kinds]),
        "## Notes",
        "\n".join(f"- **{kind.title}**: {kind.notes}" for kind in kinds if kind.notes),
        _DECLINED,
        _SEED_HEADER,
        markdown_table(seed_head, [_seed_row(kind) for kind in kinds if kind.seed]),
    ]
    return "\n\n".join(parts) + "\n"


def _type_row(kind: AgentType) -> tuple[str, ...]:
    return (
        f"`{kind.name}`",
        kind.title,
        _command(kind),
        kind.driver,
        _code(kind.install),
        _code(kind.login),
        _code(kind.key),
        kind.stores or "–",
    )


def _offers_row(kind: AgentType) -> tuple[str, ...]:
    known = f"{kind.offers.source}, {kind.offers.version}" if kind.offers else "unknown"
    steers = kind.offers.steers if kind.offers else None
    cells = (*(kind.offers_capability(name) for name in CAPABILITIES), steers)
    return (f"`{kind.name}`", known, *("" if offered is None else _yes_or_no(offered) for offered in cells))


def _usage_row(kind: AgentType) -> tuple[str, ...]:
    tokens, cost = ("" if each is Coverage.UNKNOWN else str(each) for each in (kind.usage.tokens, kind.usage.cost))
    cached = "with those of a cache" if kind.usage.input_has_cached else "without those of a cache"
    return (f"`{kind.name}`", tokens, cost, cached if tokens else "")


def _resume_row(kind: AgentType) -> tuple[str, ...]:
    gone = ", ".join(f"`{pattern}`" for pattern in kind.gone_patterns)
    errs = " (also when it is not)" if kind.errs_about_gone else ""
    return (
        f"`{kind.name}`",
        _yes_or_no(kind.supports_session_resume),
        _yes_or_no(kind.history_context_injection),
        _yes_or_no(kind.replays_on_load),
        gone + errs or "–",
    )


def _code(text: str) -> str:
    if "|" in text:  # in a table, Markdown's own code cannot hold this character
        return f"<code>{html.escape(text, quote=False)}</code>"
    return f"`{text}`" if text else "–"


def _command(kind: AgentType) -> str:
    if not kind.argv:
        return "set in the profile"
    return f"`{shlex.join(kind.argv)}`" if kind.needs else "ships with Kandev"


def _seed_row(kind: AgentType) -> tuple[str, ...]:
    assert kind.seed is not None  # noqa: S101  (the caller has checked)
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
