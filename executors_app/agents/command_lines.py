"""The agents that ship with Kandev or are configured by a profile, and those that are run through their command lines.

The latter do not speak ACP; each has its own driver.
"""

import sys
from pathlib import Path

from executors_app.agentctl.protocol import BUILT_IN_AGENT
from executors_app.agents import AgentType

_SCRIPT = Path(__file__).resolve().parent.parent / "demo_agent.py"

AGENT_TYPES = (
    AgentType(
        name="demo",
        title="Demo agent",
        argv=(sys.executable, "-I", str(_SCRIPT)),
        argv_elsewhere=(BUILT_IN_AGENT,),
        replays_on_load=True,
        gone_patterns=(r"conversation \S+ is gone",),
        notes="Needs no key and no network.",
    ),
    AgentType(
        name="custom_acp",
        title="Custom agent (ACP)",
        notes="Any agent that speaks ACP: the profile names the command, and no capability is assumed.",
    ),
    AgentType(
        name="openai_chat",
        title="Chat model (OpenAI-compatible API)",
        driver="openai_chat",
        argv=("openai-chat",),  # for the pages: no program is run
        history_context_injection=True,
        replays_on_load=True,
        notes=(
            "A conversation with a model, without a program and without tools. The profile's environment configures "
            "the API: `OPENAI_BASE_URL` (up to `/v1`), `OPENAI_API_KEY`, and `OPENAI_MODEL` if the profile names no "
            "model. agentctl, not the provider, stores the conversation beside its journal, so it survives every "
            "restart, and a load is compared with the log as for any other agent."
        ),
    ),
    AgentType(
        name="amp_cli",
        title="Amp (command line)",
        driver="amp_cli",
        argv=("amp",),
        install="npm install -g @sourcegraph/amp",
        login="amp login",
        key="AMP_API_KEY",
        stores="at its provider",
        notes=(
            "Run as `amp --execute --stream-json` and `amp threads continue`: a process per turn, none in between. "
            "Written from its published SDK and not tested, because it requires a login. Its error for a thread that "
            "is gone is unknown, so a failed turn keeps its token. A profile's model is its mode (`smart`, `rush`)."
        ),
    ),
    AgentType(
        name="claude_cli",
        title="Claude Code (command line)",
        driver="claude_cli",
        argv=("claude",),
        gone_patterns=(r"No conversation found with session ID",),
        install="npm install -g @anthropic-ai/claude-code",
        login="claude",
        key="ANTHROPIC_API_KEY",
        stores="`~/.claude/projects/`, by working directory",
        notes=(
            "Run as `claude -p` with `stream-json` in both directions: one process for many turns; permission "
            "requests use its control protocol. Written from the types of its published SDK (0.3.330); only a prompt "
            "with an image was measured, with 2.1.318. It resumes with `--resume` at the last message of its last "
            "finished turn (`--resume-session-at`), or with everything it has if that turn was not finished."
        ),
    ),
    AgentType(
        name="codex_cli",
        title="Codex (command line)",
        driver="codex_cli",
        argv=("codex",),
        gone_patterns=(r"no rollout found",),
        install="npm install -g @openai/codex",
        login="codex login",
        key="CODEX_API_KEY",
        stores="`~/.codex/sessions/` (`CODEX_HOME` moves them)",
        notes=(
            "Run as `codex exec` and `codex exec resume`: a process per turn, none in between. Measured with 0.166.0: "
            "keeps its context across `kill -9`; covered by the test suite. Its turns cannot ask for permission: its "
            "sandbox decides. `-c sandbox_mode=workspace-write` in the profile's arguments lets it write, and a "
            "profile that approves everything turns the sandbox off. It accepts images (`--image`). MCP servers come "
            "from its own configuration."
        ),
    ),
    AgentType(
        name="gemini_cli",
        title="Gemini CLI (command line)",
        driver="gemini_cli",
        argv=("gemini",),
        history_context_injection=True,
        gone_patterns=(r"No previous sessions found", r"Invalid session identifier"),
        install="npm install -g @google/gemini-cli",
        key="GEMINI_API_KEY",
        stores="`~/.gemini/tmp/`, by project",
        notes=(
            "Run with `--output-format=stream-json` and `--resume`: a process per turn, none in between. Measured with "
            "0.61.0: it can also resume a conversation within its first minute. Its turns cannot ask for permission: "
            "tools that require one are not offered to the model unless the profile approves everything. It must "
            "trust the directory, or the profile's environment must contain `GEMINI_CLI_TRUST_WORKSPACE=true`. MCP "
            "servers come from its own configuration."
        ),
    ),
)
