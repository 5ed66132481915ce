"""The settings, commands and title of an ACP agent: what it offers, what it reports, and how a setting is changed.

Config options supersede ``modes`` and ``models`` in ACP. An agent may send all of them, so a mode or model that is a
config option, too, is that option.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from executors_app.agentctl.drivers import SettingRefused, StartRequest
from executors_app.agentctl.drivers.json_rpc import JsonRpcConnection, RpcError
from executors_app.agentctl.drivers.json_values import object_of
from executors_app.wire.agent_settings import (
    REASON_LIMIT,
    TITLE_LIMIT,
    Setting,
    SettingValue,
    accepts_value,
    clean_text,
    find_setting,
    parse_commands,
    parse_settings,
)
from executors_app.wire.protocol import Code, JournalKind

_OLDER_FIELDS: Final = {
    "mode": ("modes", "availableModes", "id", "currentModeId", "session/set_mode"),
    "model": ("models", "availableModels", "modelId", "currentModelId", "session/set_model"),
}
"""By category: field of the choices, their list, their id, the current id, and the method that selects one."""


class AcpSettings:
    """What one agent process has reported of one conversation; call ``open`` once the conversation is open.

    Until ``publish`` nothing is recorded: a conversation that is loaded may replay modes that are long past.
    """

    def __init__(self, record: Callable[..., Any]):
        self._record = record
        self._published = False
        self._options: list[Setting] = []
        self._older: dict[str, Setting] = {}
        self._commands: list[dict[str, str]] = []
        self._title = ""
        self._recorded: dict[str, Any] = {}
        """Bodies of the lines recorded last, by kind, so that a repeated report adds no line."""

    @property
    def settings(self) -> list[Setting]:
        """The settings with their current values."""
        named = {name for each in self._options for name in (each["category"], each["id"])}
        return [*self._options, *(each for name, each in self._older.items() if name not in named)]

    def open(self, answer: Mapping[str, Any]) -> None:
        """Read what the answer to ``session/new``, ``load`` or ``resume`` offers."""
        self._read_options(answer)
        for name, (field, choices, key, current, _) in _OLDER_FIELDS.items():
            offered = answer.get(field)
            if isinstance(offered, dict):
                made = _older_setting(name, offered.get(choices), key, offered.get(current))
                if made:
                    self._older[name] = made

    def publish(self) -> None:
        """Record what is known, and from now on every change."""
        self._published = True
        self._record_settings("opened")
        if self._commands:
            self._record_change(JournalKind.AGENT_COMMANDS, commands=self._commands)
        if self._title:
            self._record_change(JournalKind.AGENT_TITLE, title=self._title)

    def handle_update(self, update: Mapping[str, Any]) -> None:
        """Take one of ``SETTINGS_UPDATES``."""
        kind = update.get("sessionUpdate")
        if kind == "available_commands_update":
            self._commands = parse_commands(list(map(_command, _objects(update.get("availableCommands")))))
            self._record_change(JournalKind.AGENT_COMMANDS, commands=self._commands)
        elif kind == "session_info_update":
            if "title" in update:  # null clears it; without the field it stays
                self._title = clean_text(update["title"], TITLE_LIMIT)
                self._record_change(JournalKind.AGENT_TITLE, title=self._title)
        elif kind == "config_option_update":
            self._read_options(update)
            self._record_settings("agent")
        else:
            self._set_mode(update.get("currentModeId"))
            self._record_settings("agent")

    async def apply(
        self, wire: JsonRpcConnection, conversation_id: str, request: StartRequest, *, limit: float
    ) -> None:
        """Select the model and mode of the request, then what users chose; raises AgentGone, PipeStuck.

        A refusal is recorded, and the start succeeds without it: a conversation with another model is better than
        none. ``limit``: seconds for the model, for the mode, and for all other settings together.
        """
        for name, wanted in (("model", request.model), ("mode", request.mode)):
            if not wanted:
                continue
            try:
                setting, value = self.find(name, wanted) or (None, wanted)
                await self._select(wire, conversation_id, setting, value, limit=limit)
            except SettingRefused as error:
                text = f"{name} {wanted} was not selected: {error.message}"
                self._record(JournalKind.LOG, level="warning", text=text, data={})
        end = time.monotonic() + limit
        for change in request.settings:
            about = {name: change[name] for name in ("change_id", "setting", "value")}
            left = max(0.0, end - time.monotonic())
            try:
                await self.change(wire, conversation_id, change["setting"], change["value"], limit=left)
            except SettingRefused as error:
                self._record(JournalKind.SETTING_REFUSED, **about, code=error.code, reason=error.message)
            else:
                self._record(JournalKind.SETTING_APPLIED, **about)

    def find(self, category: str, wanted: str) -> tuple[Setting, str] | None:
        """Return the setting of a category (``model``, ``mode``) and its value that ``wanted`` is the id or name of."""
        meant = wanted.casefold()
        candidates = [each for each in self._options if category in (each["category"], each["id"])]
        if category in self._older:
            candidates.append(self._older[category])
        for setting in candidates:
            for choice in setting["choices"]:
                if meant in (choice["value"].casefold(), choice["name"].casefold()):
                    return setting, choice["value"]
        return None

    async def change(
        self,
        wire: JsonRpcConnection,
        conversation_id: str,
        setting_id: str,
        value: SettingValue,
        *,
        limit: float,
        sent: Callable[[], Any] | None = None,
    ) -> None:
        """Change a setting; sends nothing if it has this value. Raises SettingRefused, AgentGone, PipeStuck.

        ``limit``: seconds for the agent's answer. ``sent`` is called once the request was written.
        """
        await self._select(
            wire, conversation_id, find_setting(self.settings, setting_id), value, limit=limit, sent=sent
        )

    async def _select(
        self,
        wire: JsonRpcConnection,
        conversation_id: str,
        setting: Setting | None,
        value: SettingValue,
        *,
        limit: float,
        sent: Callable[[], Any] | None = None,
    ) -> None:
        if setting is None:
            raise SettingRefused(Code.UNKNOWN_SETTING, "the agent does not offer it")
        if not accepts_value(setting, value):
            raise SettingRefused(Code.UNKNOWN_SETTING, "the agent does not offer this value")
        if setting["value"] == value:
            return
        method, params = self._request(setting, value)
        try:
            async with asyncio.timeout(limit):
                answer = await wire.call(method, {"sessionId": conversation_id, **params}, sent=sent)
        except RpcError as error:
            raise SettingRefused(Code.SETTING_REFUSED, clean_text(error.text, REASON_LIMIT)) from error
        except TimeoutError:
            raise SettingRefused(Code.SETTING_REFUSED, f"the agent did not answer within {limit:g} s") from None
        # The object may have been replaced by an update that arrived before the answer.
        present = find_setting(self.settings, setting["id"]) or setting
        present["value"] = value
        self._read_options(object_of(answer))
        self._record_settings("asked")
        present = find_setting(self.settings, setting["id"]) or present
        if present["value"] != value:
            raise SettingRefused(Code.SETTING_REFUSED, "the agent kept another value")

    def _request(self, setting: Setting, value: SettingValue) -> tuple[str, dict[str, Any]]:
        for name, older in self._older.items():
            if older is setting:
                return _OLDER_FIELDS[name][-1], {f"{name}Id": value}
        params = {"configId": setting["id"], "value": value}
        if setting["type"] == "boolean":
            params["type"] = "boolean"
        return "session/set_config_option", params

    def _read_options(self, answer: Mapping[str, Any]) -> None:
        """Replace the config options, of which agents always send all; without a list they stay."""
        if isinstance(answer.get("configOptions"), list):
            self._options = parse_settings(list(map(_option, _objects(answer["configOptions"]))))

    def _set_mode(self, mode: Any) -> None:
        options = [each for each in self._options if "mode" in (each["category"], each["id"])]
        if "mode" in self._older:
            options.append(self._older["mode"])
        for setting in options:
            if accepts_value(setting, mode):
                setting["value"] = mode

    def _record_settings(self, reason: str) -> None:
        """Record all settings. ``reason``: *opened* (a start), *asked* (a change from here) or *agent* (its own)."""
        if self.settings or JournalKind.AGENT_SETTINGS in self._recorded:
            self._record_change(
                JournalKind.AGENT_SETTINGS, reason=reason, settings=[dict(each) for each in self.settings]
            )

    def _record_change(self, kind: JournalKind, *, reason: str = "", **body: Any) -> None:
        if not self._published or self._recorded.get(kind) == body:
            return
        self._recorded[kind] = body
        if reason:
            self._record(kind, **body, reason=reason)
        else:
            self._record(kind, **body)


def _older_setting(name: str, choices: Any, key: str, current: Any) -> Setting | None:
    offered = [{**choice, "value": choice.get(key)} for choice in _objects(choices)]
    made = {"id": name, "name": name.capitalize(), "category": name, "type": "select", "value": current}
    return next(iter(parse_settings([{**made, "choices": offered}])), None)


def _option(option: Mapping[str, Any]) -> dict[str, Any]:
    kind = option.get("type", "select")  # agents that follow an older draft leave it out
    return {**option, "type": kind, "value": option.get("currentValue"), "choices": list(_choices(option))}


def _choices(option: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the choices of a select, which may be grouped."""
    for choice in _objects(option.get("options")):
        if "options" in choice:
            yield from _objects(choice["options"])
        else:
            yield choice


def _command(command: Mapping[str, Any]) -> dict[str, Any]:
    expected = command.get("input")
    if isinstance(expected, dict):
        return {**command, "hint": expected.get("hint")}
    return {**command, "hint": ""}


def _objects(value: Any) -> Sequence[Mapping[str, Any]]:
    if isinstance(value, list):
        return [item for item in value if isinstance(item, dict)]
    return []
