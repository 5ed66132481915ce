"""What agents report about themselves, and what users change about them: settings, logins, MCP servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from executors_app.wire.protocol import LeftOutReason
from sessions_app.kernel.events.base import Event, with_reason
from sessions_app.sessions.rules.situation_facts import Label

SECRET_MISSING: Final = "secret_missing"  # noqa: S105  (a reason)
SECRET_WITHHELD: Final = "secret_withheld"  # noqa: S105  (a reason)
_LEFT_OUT_REASONS: Final[Mapping[str, str]] = {
    LeftOutReason.HTTP_UNSUPPORTED: "the agent does not support servers over HTTP",
    LeftOutReason.SSE_UNSUPPORTED: "the agent does not support servers over SSE",
    LeftOutReason.UNSUPPORTED: "the agent uses only the servers of its own configuration",
}


def left_out_sentence(server: Mapping[str, Any]) -> str:
    """Return why an agent was not given a server; empty if it was given."""
    name, reason = f"MCP server “{server.get('name', '')}”", str(server.get("reason", ""))
    variables = server.get("variables")
    if not isinstance(variables, list | tuple):
        variables = ()
    listed = ", ".join(map(str, variables))
    if reason == SECRET_MISSING:
        return f"{name} was left out: the agent profile has no variable {listed}."
    if reason == SECRET_WITHHELD:
        return (
            f"{name} was left out: the agent profile does not give {listed} to its "
            "host. An administrator can name the host under “Secret hosts” of the profile."
        )
    why = _LEFT_OUT_REASONS.get(reason, "")
    if why:
        return f"{name} was left out: {why}."
    return ""


class AgentSettingsReported(
    Event,
    name="session.agent.settings",
    recorded_by="ingest, when the agent reports its [settings](operate/agent-setup.md#the-agents-settings); the last "
    "report of a batch",
):
    """The agent has reported its settings."""

    values: dict[str, Any] = Field(description="the value of each setting by its id, null for an unknown one")
    reason: str = Field(
        description="`opened` (the agent has started), `asked` (a change from here) or `agent` (its own change)"
    )


class AgentCommandsReported(Event, name="session.agent.commands", recorded_by="ingest"):
    """The agent has reported its commands."""

    commands: list[str] = Field(description="the names of the commands that the agent offers")


class AgentTitleReported(Event, name="session.agent.title", recorded_by="ingest"):
    """The agent has reported a title."""

    title: str = Field(description="the agent's own title of the conversation, empty if it has none")


class ProcessesReported(
    Event,
    name="session.processes",
    recorded_by="ingest, after a turn and whenever they change until the next one",
):
    """Turns of the agent have left processes running, or these have ended."""

    processes: list[dict[str, Any]] = Field(
        description="the processes that turns of the agent have left running, as at most 20 pairs of `command` (cut at "
        "200 characters, the agent's words) and `since`"
    )
    count: int


class ServersLeftOut(
    Event,
    name="session.mcp_servers.left_out",
    recorded_by="a start, or ingest: the agent was not given these "
    "[MCP servers](operate/agent-setup.md#mcp-servers-for-agents)",
):
    """The agent was not given some MCP servers."""

    launch_id: str
    servers: list[dict[str, Any]] = Field(description='`[{"name", "from", "reason", "variables"}]`')

    def timeline_label(self) -> Label:
        """Say for each server why it was left out."""
        sentences = [left_out_sentence(server) for server in self.servers]
        return Label(" ".join(sentences) or "The agent was not given some MCP servers", "ask")


class SettingEvent(Event):
    """Something happened to a change of one of the agent's settings."""

    change_id: str
    setting: str
    value: Any

    def _setting(self) -> str:
        """Return setting and value; both are the agent's own words."""
        return f"{self.setting[:80]} ({str(self.value)[:80]})"


class SettingRequested(SettingEvent, name="session.setting.requested", recorded_by="a user who changes a setting"):
    """A user changes a setting."""

    by: str

    def timeline_label(self) -> Label:
        """Name the setting."""
        return Label(f"A change of the agent’s setting {self._setting()} was requested")


class SettingApplied(
    SettingEvent, name="session.setting.applied", recorded_by="ingest: the agent has accepted the change"
):
    """The agent has accepted a change."""

    def timeline_label(self) -> Label:
        """Name the setting."""
        return Label(f"The agent’s setting {self._setting()} was changed", "calm")


class SettingRefused(
    SettingEvent,
    name="session.setting.refused",
    recorded_by="ingest: the agent has rejected the change, or a start could not apply the choice again",
):
    """The agent has rejected a change."""

    code: str
    reason: str = Field(description="the agent's own")

    def timeline_label(self) -> Label:
        """Name the setting and the reason."""
        return Label(with_reason(f"The agent refused the setting {self._setting()}", self.reason), "ask")


class LoginRequested(
    Event,
    name="session.login.requested",
    recorded_by="a user who [logs the agent in or out](operate/agent-setup.md#set-up-an-agent)",
):
    """A user logs the agent in or out."""

    action: str = Field(description="`login` or `logout`")
    method: str = Field(description="id of the agent's own method, empty for a logout")
    by: str


class LoginEnded(
    Event, name="session.login.ended", recorded_by="the end of the start that carried the login", audited=True
):
    """A login or logout has ended."""

    action: str
    method: str
    state: str = Field(description="`succeeded` or `failed`")
    code: str
    reason: str = Field(description="the agent's own or ours, empty after a success")
