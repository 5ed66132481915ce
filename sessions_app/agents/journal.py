"""What an agent reports of itself in journal lines: settings, commands, title, and MCP servers left out."""

from __future__ import annotations

from sessions_app.agents.services.mcp_servers import record_left_out
from sessions_app.stream.conversation import JournalLine, JournalUpdate


def report_settings(update: JournalUpdate, line: JournalLine) -> None:
    """Record all settings with their values."""
    update.agent_reports.report_settings(line)


def report_commands(update: JournalUpdate, line: JournalLine) -> None:
    """Record the commands that the agent offers."""
    update.agent_reports.report_commands(line)


def report_title(update: JournalUpdate, line: JournalLine) -> None:
    """Record the agent's title of the conversation."""
    update.agent_reports.report_title(line)


def settle_setting(update: JournalUpdate, line: JournalLine) -> None:
    """Record that the agent applied or refused the change of a setting."""
    update.agent_reports.settle(line)


def report_left_out_servers(update: JournalUpdate, line: JournalLine) -> None:
    """Record which MCP servers the agent did not take, and why."""
    record_left_out(update.transaction, str(line.get("launch_id")), line.get("servers"))
