"""An agent's reports of its settings, commands and title, of which the last of a batch of journal lines are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

from executors_app.wire.agent_settings import (
    NAME_LIMIT,
    REASON_LIMIT,
    TITLE_LIMIT,
    Setting,
    clean_text,
    find_setting,
    parse_commands,
    parse_settings,
)
from sessions_app.agents.events import AgentCommandsReported, AgentSettingsReported, AgentTitleReported
from sessions_app.agents.models import APPLIED, KEPT, REFUSED, WAITING, agent_settings_of, record_refusal, settle_change
from sessions_app.models import AgentSettings, SessionTransaction

JournalLine = Mapping[str, Any]


class AgentReports:
    """An agent's reports of its settings, commands and title in one batch.

    ``write`` stores the last of each in the session's transaction. An agent may report its settings a thousand times in
    a second; one event and one row are written for a batch.
    """

    def __init__(self, transaction: SessionTransaction):
        self._transaction = transaction
        self._reports: dict[str, tuple[datetime, Callable[[], object]]] = {}
        """By column, the time of the last report and what records its event."""
        self._changed = False

    @cached_property
    def _row(self) -> AgentSettings:
        session = self._transaction.session
        return agent_settings_of(session) or AgentSettings(session=session)

    def report_settings(self, line: JournalLine) -> None:
        """Record all settings with their values. A choice follows its agent, unless the agent has just started."""
        if not self._is_newer("settings_at"):
            return
        before, self._row.settings = self._row.settings, parse_settings(line.get("settings"))
        reason = clean_text(line.get("reason"), NAME_LIMIT)
        if reason != "opened":
            self._follow(before)
        values = {each["id"]: each["value"] for each in self._row.settings}
        self._note(
            "settings", lambda: self._transaction.record_event(AgentSettingsReported(values=values, reason=reason))
        )

    def report_commands(self, line: JournalLine) -> None:
        """Record the commands that the agent offers."""
        if self._is_newer("commands_at"):
            self._row.commands = parse_commands(line.get("commands"))
            names = [each["name"] for each in self._row.commands]
            self._note("commands", lambda: self._transaction.record_event(AgentCommandsReported(commands=names)))

    def report_title(self, line: JournalLine) -> None:
        """Record the agent's title of the conversation."""
        if self._is_newer("title_at"):
            self._row.title = clean_text(line.get("title"), TITLE_LIMIT)
            title = self._row.title
            self._note("title", lambda: self._transaction.record_event(AgentTitleReported(title=title)))

    def settle(self, line: JournalLine) -> None:
        """Record the outcome of a change, or the refusal of a choice that a start applied again."""
        setting_id, change_id, code = (str(line.get(name) or "") for name in ("setting", "change_id", "code"))
        reason = clean_text(line.get("reason"), REASON_LIMIT)
        if settle_change(self._transaction, self._row, setting_id, change_id, code=code[:64], reason=reason):
            self._changed = True
        elif code and change_id.startswith(KEPT):
            self._refuse_kept(setting_id, change_id.removeprefix(KEPT), code[:64], reason)

    def write(self) -> None:
        """Write the row and the events; call it once, at the end of the batch."""
        for at, record in self._reports.values():
            self._transaction.at = at
            record()
        if self._reports or self._changed:
            self._row.save()

    def _follow(self, before: list[Setting]) -> None:
        """Update choices to values that the agent changed on its own, so that a restart does not undo them."""
        for setting in self._row.settings:
            choice, earlier = self._row.chosen.get(setting["id"], {}), find_setting(before, setting["id"])
            settled = choice.get("change", {}).get("state") in (APPLIED, REFUSED)
            moved = earlier is not None and earlier["value"] != setting["value"]
            if "value" in choice and settled and moved and setting["value"] is not None:
                self._row.choose(setting["id"], value=setting["value"])

    def _refuse_kept(self, setting_id: str, change_id: str, code: str, reason: str) -> None:
        """Show that a start could not apply an earlier choice again; the next start tries again."""
        change = self._row.change_of(setting_id)
        if change.get("id") != change_id or change["state"] == WAITING:
            return
        self._row.choose(setting_id, change={**change, "state": REFUSED, "code": code, "reason": reason})
        value = self._row.chosen[setting_id].get("value")
        record_refusal(self._transaction, setting_id, change_id, value, code=code, reason=reason)
        self._changed = True

    def _is_newer(self, column: str) -> bool:
        """Whether the line is newer than what the column's report is of; notes its time if so."""
        known, at = getattr(self._row, column), self._transaction.at
        if known is not None and known > at:
            return False
        setattr(self._row, column, at)
        return True

    def _note(self, column: str, record: Callable[[], object]) -> None:
        self._reports[column] = (self._transaction.at, record)
