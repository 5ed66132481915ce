"""Pass changes of an agent's settings on to it, each once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from executors_app.agentctl.drivers import Driver, SettingRefused, SupportsSettings
from executors_app.agentctl.journal import Journal
from executors_app.agentctl.state_files import DurableStore
from executors_app.machine import crash_points
from executors_app.wire.protocol import ApiError, Code, JournalKind

logger = logging.getLogger(__name__)

_SETTING_TOPIC: Final = "setting"
_WRITE_LIMIT: Final = 2.0
"""Seconds that the answer waits until the change is written to the agent, so that a later prompt stays behind it."""


class SettingChanges:
    """The requested changes, and those that were made before, by ``change_id``."""

    def __init__(self, journal: Journal, store: DurableStore):
        self._journal, self._store = journal, store
        self._open: dict[str, asyncio.Task[None]] = {}

    async def request(self, driver: Driver, change_id: str, setting: str, value: str | bool) -> dict[str, bool]:
        """Pass a change on to the agent, once; its outcome follows as a journal line. Raises ApiError.

        Returns ``{"accepted", "duplicate"}``. A change whose agent ends first has no outcome: the control plane sends
        it with the next start.
        """
        if change_id in self._open or self._store.get(_SETTING_TOPIC, change_id) is not None:
            return {"accepted": True, "duplicate": True}
        if not isinstance(driver, SupportsSettings):
            raise ApiError(Code.SETTINGS_UNSUPPORTED, "this agent has no settings")
        written = asyncio.Event()
        work = self._change(driver, {"change_id": change_id, "setting": setting, "value": value}, written)
        task = self._open[change_id] = asyncio.create_task(work, name=f"setting {change_id}")
        task.add_done_callback(lambda _: self._open.pop(change_id, None))
        waiting = asyncio.create_task(written.wait())
        await asyncio.wait((task, waiting), timeout=_WRITE_LIMIT, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return {"accepted": True, "duplicate": False}

    async def _change(self, driver: SupportsSettings, about: dict[str, Any], written: asyncio.Event) -> None:
        kind, more = JournalKind.SETTING_APPLIED, {}
        try:
            await driver.change_setting(about["setting"], about["value"], written.set)
        except SettingRefused as error:
            kind, more = JournalKind.SETTING_REFUSED, {"code": error.code, "reason": error.message}
        except Exception as error:  # noqa: BLE001  (the agent ended: its next start makes the change)
            logger.info("a setting was not changed: %r", error)
            return
        # The journal first: after a crash in between the agent is gone, and its next start makes the change again.
        await self._journal.wait_until_durable(self._journal.append(kind, **about, **more))
        crash_points.reached("agentctl.setting_journaled")
        try:
            self._store.put(_SETTING_TOPIC, about["change_id"], True)
        except OSError as error:
            logger.error("the change of a setting could not be stored: %s", error.strerror)
