"""What ships with Kandev or is named by a profile, and agents that are run through their own command lines.

The latter speak no ACP; each has a driver of its own.
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
        notes="Any agent that speaks ACP: the profile names the command, and nothing is taken for granted.",
    ),
    AgentType(
        name="openai_chat",
        title="Chat model (OpenAI-compatible API)",
        driver="openai_chat",
        argv=("openai-chat",),  # for the pages: no program is run
        history_context_injection=True,
        replays_on_load=True,
        notes=(
            "No program and no tools: a conversation with a model. The profile's environment names the API: "
            "`OPENAI_BASE_URL` (up to `/v1`), `OPENAI_API_KEY`, and `OPENAI_MODEL` where the profile names no model. "
            "What was said is kept by agentctl beside its journal, not by the provider, so it survives every restart, "
            "and a load is compared with the log as any other."
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
            "Written after its published SDK, not run here: it wants a login. What it says of a thread that is gone is "
            "not known, so a failed turn keeps its token. The model of a profile is its mode (`smart`, `rush`)."
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
            "Run as `claude -p` with `stream-json` both ways: one process for many turns; permissions are asked "
            "through its control protocol. Written after the types of its published SDK (0.3.330); only a prompt with "
            "an image was measured, with 2.1.318. It resumes with `--resume`, at the last message of its last finished "
            "turn (`--resume-session-at`), or with all that it has where that turn was not finished."
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
            "keeps its context over `kill -9`; the test suite runs it. Nobody can be asked in its turns: its sandbox "
            "decides, `-c sandbox_mode=workspace-write` among the profile's arguments lets it write, and a profile "
            "that approves everything takes the sandbox away. It takes images (`--image`). MCP servers come from "
            "its own configuration."
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
            "0.61.0: it takes a conversation up in the minute in which it began, too. Nobody can be asked in its "
            "turns: tools that want a permission are not offered to the model, unless the profile approves everything. "
            "A directory must be one that it trusts, or `GEMINI_CLI_TRUST_WORKSPACE=true` be in the profile's "
            "environment. MCP servers come from its own configuration."
        ),
    ),
)
