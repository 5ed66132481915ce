"""The settings, commands and title of a session's agent: read them, and request a change."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from executors_app.wire.agent_settings import accepts_value, find_setting
from sessions_app.agents.events import SettingRequested
from sessions_app.agents.models import WAITING, agent_settings_of
from sessions_app.kernel.services.errors import Invalid, NoAgent, SettingsUnknown, UnknownSetting
from sessions_app.kernel.transactions import create_intent
from sessions_app.models import AgentSettings, IntentKind, SessionTransaction, TaskSession, session_transaction
from sessions_app.prompts.services import refuse_ended


def agent_settings_document(session: TaskSession) -> dict[str, Any]:
    """Return what the agent last reported, and the state of each change: the answer of the API."""
    row = agent_settings_of(session)
    if row is None:
        return {"settings": [], "commands": [], "title": "", "reported_at": None}
    settings = [{**each, "change": row.change_of(each["id"]) or None} for each in row.settings]
    return {"settings": settings, "commands": row.commands, "title": row.title, "reported_at": row.settings_at}


def request_setting(session_id: uuid.UUID, by: User, setting_id: str, value: str | bool) -> None:
    """Request the change of a setting of the agent; a value that it has already changes nothing.

    A running agent gets the change at once, also during a turn; any other gets it with its next start. Raises
    NoAgent, TerminalState, SettingsUnknown, UnknownSetting, Invalid.
    """
    with session_transaction(session_id, related=("task",)) as transaction:
        if not transaction.session.has_agent:
            raise NoAgent
        refuse_ended(transaction.session)
        row = agent_settings_of(transaction.session)
        if row is None or not row.settings:
            raise SettingsUnknown
        setting = find_setting(row.settings, setting_id)
        if setting is None:
            raise UnknownSetting(known=[each["id"] for each in row.settings])
        if not accepts_value(setting, value):
            if setting["type"] == "boolean":
                wanted_type = "true or false"
            else:
                wanted_type = "one of the choices of this setting"
            raise Invalid(f"value must be {wanted_type}.", field="value")
        expected = setting["value"]
        change = row.change_of(setting_id)
        if change.get("state") == WAITING:
            expected = change["value"]
        if expected != value:
            _write_change(transaction, row, setting_id, value, by)


def _write_change(
    transaction: SessionTransaction, row: AgentSettings, setting_id: str, value: str | bool, by: User
) -> None:
    change_id = uuid.uuid4().hex
    requested_by = by.get_username()
    change = {
        "id": change_id,
        "value": value,
        "state": WAITING,
        "code": "",
        "reason": "",
        "by": requested_by,
        "at": timezone.now().isoformat(),
    }
    row.choose(setting_id, change=change)
    row.save(update_fields=["chosen", "updated_at"])
    transaction.record_event(SettingRequested(change_id=change_id, setting=setting_id, value=value, by=requested_by))
    # Without an agent that should be running, the next start applies the change: no intent has to wait for it.
    if transaction.session.launch_id:
        payload = {"change_id": change_id, "setting": setting_id, "value": value}
        create_intent(transaction.session, IntentKind.SETTING, by, payload)


def order_waiting_changes(transaction: SessionTransaction) -> None:
    """Send changes that were requested while the agent started; resending one that the start applied is harmless."""
    row = agent_settings_of(transaction.session)
    if row is None:
        return
    open_intents = transaction.session.intents.filter(kind=IntentKind.SETTING, done_at=None)
    for change in row.waiting_changes():
        if not open_intents.filter(payload__change_id=change["change_id"]).exists():
            create_intent(transaction.session, IntentKind.SETTING, None, change)
