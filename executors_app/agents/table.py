"""The table of agent types: every agent that Kandev knows, grouped by how it speaks.

An entry says how the agent is started, installed and logged in, and what it does with its conversations. It holds
nothing but facts about the agent; the fields are those of ``AgentType``. What an agent does unlike all others is in a
file of its own beside this one, under the agent's name.

*Published* capabilities are those of the ACP registry's protocol matrix of 2026-08-20, unless the notes say otherwise.
"""

import sys
from pathlib import Path

from executors_app.agents import (
    AgentType,
    Coverage,
    SeedClaim,
    UsageReport,
    claude_code,
    codex,
    copilot,
    measured,
    published,
)
from executors_app.wire.protocol import BUILT_IN_AGENT

_DEMO_AGENT = Path(__file__).resolve().parent.parent / "demo_agent"

# The demo agent, the agents that a profile names, and chat models: for them nothing is installed.
_WITHOUT_A_PROGRAM_TO_INSTALL = (
    AgentType(
        name="demo",
        title="Demo agent",
        argv=(sys.executable, "-I", str(_DEMO_AGENT)),
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
        usage=UsageReport(tokens=Coverage.TURN, input_has_cached=True),
        notes=(
            "A conversation with a model, without a program and without tools. The profile's environment configures "
            "the API: `OPENAI_BASE_URL` (up to `/v1`), `OPENAI_API_KEY`, and `OPENAI_MODEL` if the profile names no "
            "model. agentctl, not the provider, stores the conversation beside its journal, so it survives every "
            "restart, and a load is compared with the log as for any other agent."
        ),
    ),
)

# Agents that speak ACP themselves.
_ACP = (
    AgentType(
        name="agentao",
        title="Agentao",
        argv=("agentao", "--acp", "--stdio"),
        history_context_injection=True,
        replays_on_load=True,
        # It saves when its stdin closes, and a kill may come at any moment of that: with or without folder and file.
        gone_patterns=(r"No sessions directory found", r"No saved sessions found", r"Session '.*' not found"),
        install="pip install agentao",
        key="OPENAI_API_KEY",
        stores="`.agentao/` in the workspace",
        offers=measured("0.5.17", "load"),
        notes=(
            "Measured with 0.5.17: it saves its conversation when its input ends, as at a stop, so it loses it on "
            "`kill -9` and reports this. The history is then sent with the next prompt, and the receipt shows this. "
            "Covered by the test suite."
        ),
    ),
    AgentType(
        name="agoragentic",
        title="Agoragentic",
        argv=("agoragentic-mcp", "--acp"),
        install="npm install -g agoragentic-mcp",
        registry="agoragentic-acp",
        notes="An agent marketplace that invokes paid services.",
    ),
    AgentType(
        name="auggie",
        title="Auggie",
        argv=("auggie", "--acp"),
        env={"AUGMENT_DISABLE_AUTO_UPDATE": "1"},
        history_context_injection=True,
        gone_patterns=(r"Session not found",),
        install="npm install -g @augmentcode/auggie",
        login="auggie login",
        key="AUGMENT_SESSION_AUTH",
        stores="`~/.augment/sessions/`",
        offers=published("0.35.0", "load", "list"),
        registry="auggie",
        notes="Without a token, the history is sent with the next prompt.",
        seed=SeedClaim(native=False, history=True, notes="fresh start, history with the first prompt"),
        differs_from_seed="It supports `session/load` since 0.18.1; the seed's method remains as the fallback.",
    ),
    AgentType(
        name="cline",
        title="Cline",
        argv=("cline", "--acp"),
        install="npm install -g cline",
        login="cline auth",
        key="CLINE_API_KEY",
        stores="`~/.cline/data/sessions/`",
        offers=published("3.0.55", "load"),
        registry="cline",
        notes="Observed with 3.0.65: starts without a login, and reports -32002 for a conversation that is gone.",
    ),
    AgentType(
        name="code_puppy",
        title="Code Puppy",
        argv=("code-puppy", "--acp"),
        install="uv tool install code-puppy",
        key="OPENAI_API_KEY",
        asks_permission=False,
        stores="`~/.code_puppy/autosaves/acp/`",
        notes=(
            "Observed with 0.0.946: it does not ask for permission. The load of a conversation that is gone succeeds "
            "without a replay, which Kandev reports as unproven."
        ),
    ),
    AgentType(
        name="codebuddy",
        title="CodeBuddy Code",
        argv=("codebuddy", "--acp"),
        install="npm install -g @tencent-ai/codebuddy-code",
        login="codebuddy",
        key="CODEBUDDY_API_KEY",
        registry="codebuddy-code",
    ),
    AgentType(
        name="cortex_code",
        title="Cortex Code",
        argv=("cortex", "acp", "serve"),
        install="curl -LsS https://ai.snowflake.com/static/cc-scripts/install.sh | sh",
        login="cortex",
        registry="cortex-code",
    ),
    AgentType(
        name="corust",
        title="Corust Agent",
        argv=("corust-agent-acp",),
        install=(
            "curl -fsSL https://github.com/Corust-ai/corust-agent-release/releases/latest/download/"
            "agent-linux-x64.tar.gz | tar -xz -C ~/.local/bin"
        ),
        offers=published("0.6.0"),
        registry="corust-agent",
    ),
    AgentType(
        name="crow",
        title="crow-cli",
        argv=("crow-cli", "acp"),
        install="uv tool install crow-cli",
        stores="`~/.agents/crow/crow.db`",
        registry="crow-cli",
        notes=(
            "Observed with 0.1.48: it has no tools of its own. Add its MCP server `crow-cli mcp` to the agent profile. "
            "The load of a conversation that is gone succeeds without a replay, which Kandev reports as unproven."
        ),
    ),
    AgentType(
        name="cursor",
        title="Cursor",
        argv=("cursor-agent", "acp"),
        install="curl https://cursor.com/install -fsS | bash",
        login="cursor-agent login",
        key="CURSOR_API_KEY",
        offers=published("2026.08.11", "load", "list"),
        registry="cursor",
    ),
    AgentType(
        name="deepagents",
        title="Deep Agents",
        argv=("deepagents-acp",),
        supports_session_resume=False,
        replays_on_load=True,
        install="pip install deepagents-acp",
        offers=measured("0.0.13"),
        registry="deepagents",
        notes="Offers no way to resume a conversation. Measured with 0.0.13; covered by the test suite.",
    ),
    AgentType(
        name="devin",
        title="Devin",
        argv=("devin", "acp"),
        install="curl -fsSL https://cli.devin.ai/install.sh | bash",
        login="devin auth login",
        offers=published("3000.4.25", "load", "list"),
        registry="devin",
    ),
    AgentType(
        name="dimcode",
        title="DimCode",
        argv=("dimcode", "acp"),
        install="npm install -g dimcode",
        offers=published("0.3.16", "load", "resume", "list"),
        registry="dimcode",
    ),
    AgentType(
        name="dirac",
        title="Dirac",
        argv=("dirac", "--acp"),
        install="npm install -g dirac-cli",
        offers=published("0.4.37", "load", "resume"),
        registry="dirac",
    ),
    AgentType(
        name="factory_droid",
        title="Factory Droid",
        argv=("droid", "exec", "--output-format", "acp"),
        gone_patterns=(r"Unknown session identifier",),
        env={"DROID_DISABLE_AUTO_UPDATE": "true", "FACTORY_DROID_AUTO_UPDATE_ENABLED": "false"},
        install="npm install -g droid",
        login="droid",
        key="FACTORY_API_KEY",
        stores="`~/.factory/sessions/`",
        offers=published("0.200.0", "load", "resume", "list"),
        registry="factory-droid",
        notes="Observed with 0.215: its format `acp-daemon` ends when it gets an MCP server that is a program.",
    ),
    AgentType(
        name="fast_agent",
        title="fast-agent",
        argv=("fast-agent-acp",),
        replays_on_load=True,
        gone_patterns=(r"Session not found",),
        install="pip install fast-agent-mcp",
        stores="`.fast-agent/sessions/` in the workspace",
        registry="fast-agent",
        notes=(
            "Requires Python 3.13 or later. Observed with 0.10.46: keeps its context across `kill -9`, replays on "
            "load, and reports -32002 and *Session not found* for a conversation that is gone. Models and their keys "
            "come from its own configuration."
        ),
    ),
    AgentType(
        name="gemini",
        title="Gemini CLI",
        argv=("gemini", "--acp"),
        history_context_injection=True,
        replays_on_load=True,
        gone_patterns=(r"No previous sessions found", r"Invalid session identifier"),
        errs_about_gone=True,
        install="npm install -g @google/gemini-cli",
        key="GEMINI_API_KEY",
        stores="`~/.gemini/tmp/`, by project",
        offers=published("0.56.0", "load"),
        registry="gemini",
        notes=(
            "Observed with 0.61.0: a load within the first minute of a conversation reports that it does not exist; a "
            "minute later it is found. A start after a killed load may delete older chats."
        ),
        seed=SeedClaim(native=False, history=False, notes="boots idle, no context restoration"),
        differs_from_seed=(
            "It now supports `session/load`. It can lose conversations; the history is then sent instead. The receipt "
            "shows which of the two happened."
        ),
    ),
    AgentType(
        name="copilot",
        title="GitHub Copilot",
        argv=("copilot", "--acp"),
        failure_messages=copilot.FAILURE_MESSAGES,
        install="npm install -g @github/copilot",
        login="copilot login",
        key="COPILOT_GITHUB_TOKEN",
        stores="`~/.copilot/session-state/`",
        offers=published("1.0.80", "load", "list"),
        registry="github-copilot-cli",
        notes=(
            "Observed with 1.0.102: `COPILOT_PROVIDER_BASE_URL` in the profile's environment names another provider, "
            "and -32002 reports a conversation that is gone."
        ),
        seed=SeedClaim(native=True, history=False, notes="`session/load` restores context"),
    ),
    AgentType(
        name="glm",
        title="GLM Agent",
        argv=("glm-acp-agent",),
        install="npm install -g glm-acp-agent",
        key="Z_AI_API_KEY",
        offers=published("1.6.0", "load", "resume", "list", "fork"),
        registry="glm-acp-agent",
    ),
    AgentType(
        name="antigravity",
        title="Google Antigravity",
        argv=("agy_acp_server.par", "--uid="),
        install=(
            "curl -fsSLO https://dl.google.com/agy-extensions/releases/linux/agy-acp-server-1.2.1-linux-x86_64.zip"
            " && unzip agy-acp-server-1.2.1-linux-x86_64.zip -d ~/.local/bin"
        ),
        registry="antigravity-acp",
    ),
    AgentType(
        name="goose",
        title="goose",
        argv=("goose", "acp"),
        install="curl -fsSL https://github.com/block/goose/releases/download/stable/download_cli.sh | bash",
        login="goose configure",
        stores="`~/.local/share/goose/sessions/`",
        offers=published("1.46.0", "load", "list"),
        registry="goose",
    ),
    AgentType(
        name="gptme",
        title="gptme",
        argv=("gptme-acp",),
        install="uv tool install gptme-acp",
        notes=(
            "Observed with 0.35.1: it continues the conversation of its directory in `session/new`, under the same id."
        ),
    ),
    AgentType(
        name="grok",
        title="Grok Build",
        argv=("grok", "agent", "stdio"),
        install="npm install -g @xai-official/grok",
        login="grok login",
        key="XAI_API_KEY",
        stores="`~/.grok/sessions/`, by directory",
        offers=published("1.0.7", "load", "resume", "list"),
        registry="grok-build",
    ),
    AgentType(
        name="harn",
        title="Harn",
        argv=("harn", "serve", "acp"),
        install=(
            "curl -fsSL https://github.com/burin-labs/harn/releases/latest/download/"
            "harn-x86_64-unknown-linux-gnu.tar.gz | tar -xz -C ~/.local/bin"
        ),
        offers=published("0.10.105", "load", "resume", "list"),
        registry="harn",
        notes="Runs pipelines from `.harn` files.",
    ),
    AgentType(
        name="hermes",
        title="Hermes Agent",
        argv=("hermes", "acp"),
        install="pip install 'hermes-agent[acp]'",
        login="hermes setup",
        stores="`~/.hermes/state.db`",
        notes=(
            "Observed with 0.19.0: keeps its context across `kill -9` and replays on load. Loading an unknown "
            "conversation succeeds with an empty one, which the replay reveals; the next turn ends in `refusal`."
        ),
    ),
    AgentType(
        name="junie",
        title="Junie",
        argv=("junie", "--acp=true"),
        install="curl -fsSL https://junie.jetbrains.com/install.sh | bash",
        login="junie",
        key="JUNIE_API_KEY",
        offers=published("2913.6.0", "load", "resume", "list", "fork"),
        registry="junie",
    ),
    AgentType(
        name="kilo",
        title="Kilo",
        argv=("kilo", "acp"),
        install="npm install -g @kilocode/cli",
        login="kilo auth login",
        key="KILO_API_KEY",
        gone_patterns=(r'"service":\s*"session"',),
        asks_permission=False,
        stores="`~/.local/share/kilo/kilo.db`",
        offers=published("7.4.22", "load", "resume", "list", "fork"),
        registry="kilo",
    ),
    AgentType(
        name="kimi",
        title="Kimi Code",
        argv=("kimi", "acp"),
        replays_on_load=True,
        gone_patterns=(r"Unknown sessionId",),
        install="npm install -g @moonshot-ai/kimi-code",
        stores="`~/.kimi-code/sessions/`, by directory",
        offers=measured("2.1.0", "load", "resume", "list", "fork", "close", "delete"),
        registry="kimi",
        notes=(
            "The successor of Kimi CLI, which the registry lists. Requires Node 22.19 or later. Measured with 2.1.0: "
            "keeps its context across `kill -9`, except for the last third of a second, which it has not written to "
            "disk yet; covered by the test suite."
        ),
    ),
    AgentType(
        name="kiro",
        title="Kiro CLI",
        argv=("kiro-cli", "acp"),
        install="curl -fsSL https://cli.kiro.dev/install | bash",
        login="kiro-cli login",
        key="KIRO_API_KEY",
        stores="`~/.kiro/sessions/cli/`",
        offers=published("2", "load", probed=()),
    ),
    AgentType(
        name="minion_code",
        title="Minion Code",
        argv=("minion-code", "acp"),
        install="uv tool install minion-code",
        registry="minion-code",
    ),
    AgentType(
        name="mistral_vibe",
        title="Mistral Vibe",
        argv=("vibe-acp",),
        replays_on_load=True,
        gone_patterns=(r"Session not found",),
        install="pip install mistral-vibe",
        login="vibe --setup",
        key="MISTRAL_API_KEY",
        stores="`~/.vibe/logs/session/`",
        registry="mistral-vibe",
        notes=(
            "Requires Python 3.12 or later. Observed with 3.0.2: offers load and replays; keeps its context across "
            "`kill -9`; reports -32602 and *Session not found* for a conversation that is gone; its permission "
            "requests contain only the id of the tool call."
        ),
    ),
    AgentType(
        name="nova",
        title="Nova",
        argv=("nova", "acp"),
        install="npm install -g @compass-ai/nova",
        offers=published("1.1.35", "load", "resume", "list", "fork"),
        registry="nova",
    ),
    AgentType(
        name="opencode",
        title="OpenCode",
        argv=("opencode", "acp"),
        replays_on_load=True,
        gone_patterns=(r'OpenCode service failure.*"service":"session"',),
        install="npm install -g opencode-ai",
        login="opencode auth login",
        stores="`~/.local/share/opencode/opencode.db`",
        offers=measured("1.18.33", "load", "resume", "list", "fork", "close"),
        registry="opencode",
        usage=UsageReport(cost=Coverage.CONVERSATION),
        notes=(
            "Measured with 1.18.33: keeps its context across `kill -9`, even during a turn; uses half a gigabyte of "
            "memory; covered by the test suite."
        ),
        seed=SeedClaim(native=True, history=False, notes="`session/load` restores context"),
    ),
    AgentType(
        name="openhands",
        title="OpenHands",
        argv=("openhands", "acp"),
        install="uv tool install openhands --python 3.12",
        login="openhands",
        stores="`~/.openhands/conversations/`",
        notes=(
            "Observed with 1.16.0: keeps its context across `kill -9` and does not replay it on load; loading an "
            "unknown conversation succeeds, and this cannot be detected; it ignores a cancellation. With "
            "`--override-with-envs` in the profile's arguments, `LLM_API_KEY` and `LLM_MODEL` apply."
        ),
    ),
    AgentType(
        name="poolside",
        title="Poolside",
        argv=("pool", "acp"),
        install="curl -fsSL https://downloads.poolside.ai/pool/install.sh | sh",
        login="pool login",
        offers=published("1.0.16", "load", "list"),
        registry="poolside",
    ),
    AgentType(
        name="qoder",
        title="Qoder CLI",
        argv=("qodercli", "--acp"),
        install="npm install -g @qoder-ai/qodercli",
        login="qodercli login",
        key="QODER_PERSONAL_ACCESS_TOKEN",
        registry="qoder",
    ),
    AgentType(
        name="qwen",
        title="Qwen Code",
        argv=("qwen", "--acp"),
        history_context_injection=True,
        replays_on_load=True,
        gone_patterns=(r"Resource not found: session:",),
        install="npm install -g @qwen-code/qwen-code",
        login="qwen",
        key="OPENAI_API_KEY",
        stores="`~/.qwen/projects/`, by working directory",
        offers=measured("0.15.10", "load", "resume", "list"),
        registry="qwen-code",
        notes=(
            "Measured with 0.15.10: keeps its context across `kill -9`; loading an unknown conversation, or loading "
            "one from another directory, succeeds with an empty one, which the replay reveals; it advertises resume "
            "but refuses it. Covered by the test suite. 0.24.4 reports such a conversation as gone. `OPENAI_BASE_URL` "
            "and `OPENAI_MODEL` select another provider."
        ),
    ),
    AgentType(
        name="sigit",
        title="siGit Code",
        argv=("sigit",),
        install="npm install -g @smbcloud/sigit",
        offers=published("1.5.2", "load", "fork"),
        registry="sigit",
        notes="Can run its models locally.",
    ),
    AgentType(
        name="stakpak",
        title="Stakpak",
        argv=("stakpak", "acp"),
        install="curl -sSL https://stakpak.dev/install.sh | sh",
        login="stakpak auth login",
        key="STAKPAK_API_KEY",
        offers=published("0.3.88", "load"),
        registry="stakpak",
    ),
    AgentType(
        name="vtcode",
        title="VT Code",
        argv=("vtcode", "acp"),
        env={"VT_ACP_ENABLED": "1", "VT_ACP_ZED_ENABLED": "1"},
        install="cargo install vtcode",
        registry="vtcode",
    ),
)

# Agents whose ACP is spoken by a second program, an adapter, which runs them.
_ACP_BY_ADAPTER = (
    AgentType(
        name="amp",
        title="Amp",
        argv=("amp-acp",),
        install="npm install -g amp-acp @ampcode/cli",
        login="amp login",
        key="AMP_API_KEY",
        stores="at its provider",
        offers=published("0.10.0", "load", "resume", probed=()),
        registry="amp-acp",
        notes=(
            "Runs `amp`. From 0.10.0 it offers load and resume and replays what it can (according to its changelog; "
            "not tested). For an unknown conversation it reports only *Invalid params*, which proves nothing, so a "
            "failed load keeps its token."
        ),
        seed=SeedClaim(native=False, history=False, notes="uses its own fork and continue commands"),
        differs_from_seed="The current adapter offers `session/load` and continues the thread by its id.",
    ),
    AgentType(
        name="autohand",
        title="Autohand Code",
        argv=("autohand-acp",),
        install="npm install -g @autohandai/autohand-acp autohand-cli",
        offers=published("0.2.1", "load", "resume", "list", "fork"),
        registry="autohand",
        notes="An adapter for `autohand`. `AUTOHAND_PERMISSION_MODE=external` makes it ask for permission.",
    ),
    AgentType(
        name="claude_code",
        title="Claude Code",
        argv=("claude-agent-acp",),
        gone_patterns=(r"Resource not found", r"No conversation found with session ID"),
        failure_messages=claude_code.FAILURE_MESSAGES,
        install="npm install -g @agentclientprotocol/claude-agent-acp",
        login="claude-agent-acp --cli auth login",
        key="ANTHROPIC_API_KEY",
        stores="`~/.claude/projects/`, by working directory",
        offers=measured("0.101.0", "load", "resume", "list", "fork", "close", "delete", steers=True),
        minimum={"@agentclientprotocol/claude-agent-acp": "0.43.0"},
        registry="claude-acp",
        usage=UsageReport(tokens=Coverage.TURN, cost=Coverage.PROCESS),
        notes=(
            "Requires Node 22 or later. Measured with 0.101.0: keeps its context across `kill -9`, even during a "
            "turn; covered by the test suite. It asks questions only of clients that declare support for them, and "
            "only from 0.43.0 on: the published package of 0.42.0 disables the tool for questions."
        ),
        seed=SeedClaim(native=False, history=False, notes="uses the `--resume` flag of its command line"),
        differs_from_seed="The current adapter offers `session/load`; no command-line flag is needed.",
    ),
    AgentType(
        name="codex",
        title="Codex",
        argv=("codex-acp",),
        replays_on_load=True,
        gone_patterns=(r"Resource not found", r"no rollout found"),
        failure_messages=codex.FAILURE_MESSAGES,
        install="npm install -g @agentclientprotocol/codex-acp",
        login="codex-acp cli login",
        key="OPENAI_API_KEY",
        stores="`~/.codex/sessions/` (`CODEX_HOME` moves them)",
        offers=measured("2.6.0", "load", "resume", "list", "fork", "close", "delete", steers=True),
        registry="codex-acp",
        usage=UsageReport(tokens=Coverage.TURN),
        notes=(
            "Measured with 2.6.0: keeps its context across `kill -9`, even during a turn; covered by the test suite. "
            "The older package `@zed-industries/codex-acp` is no longer maintained; both provide `codex-acp`, and "
            "profiles work with either. It includes its own `codex`; `CODEX_PATH` selects another."
        ),
        seed=SeedClaim(native=True, history=False, notes="`session/load` restores context"),
    ),
    AgentType(
        name="pi",
        title="Pi",
        argv=("pi-acp",),
        install="npm install -g pi-acp @earendil-works/pi-coding-agent",
        login="pi",
        key="ANTHROPIC_API_KEY",
        gone_patterns=(r"Unknown sessionId",),
        asks_permission=False,
        stores="`~/.pi/agent/sessions/`",
        offers=published("0.0.33", "load", "list"),
        registry="pi-acp",
        notes="An adapter for `pi`, which also takes the key of another provider (`OPENAI_API_KEY`, `GEMINI_API_KEY`).",
    ),
)

# Agents that are run through their command lines; each has its own driver, and none speaks ACP.
_COMMAND_LINES = (
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
        usage=UsageReport(tokens=Coverage.TURN, cost=Coverage.PROCESS),
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
        usage=UsageReport(tokens=Coverage.CONVERSATION, input_has_cached=True),
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

AGENT_TYPES = (*_WITHOUT_A_PROGRAM_TO_INSTALL, *_ACP, *_ACP_BY_ADAPTER, *_COMMAND_LINES)
