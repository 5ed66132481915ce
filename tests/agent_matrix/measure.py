"""Measurements of one agent: its behaviour with a minimal client, and its resume with Kandev's driver."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.drivers import StartFailed, StartRequest, StartResult, acp
from executors_app.plugins import agent_types
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.agent_matrix.table import Row
from tests.agents.hosts import RecordingHost
from tests.real_agents.bare_agent import BareAgent, bare_agent, offered_capabilities
from tests.real_agents.homes import AGENT_TYPES, RealAgent, real_agent
from tests.real_agents.model_server import ModelServer, running_model
from tests.waiting import eventually

ROUNDS: Final = 3
HOLD: Final = 20
"""Seconds until the model answers a turn that the agent does not cancel."""
WORD: Final = "heron"
_QUESTION: Final = "what was the word?"


def measure(published: str, home: Path) -> Row:
    """Return the row of an agent (a key of ``AGENT_TYPES``); a failed step leaves its cells empty."""
    with running_model() as model:
        return _Measurement(published, home, model).row()


@dataclass
class _Updates:
    """What an agent has sent to a client without being asked."""

    updates: list[Mapping[str, Any]] = field(default_factory=list)
    permissions: int = 0
    questions: int = 0

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [update for update in self.updates if update.get("sessionUpdate") == kind]


class _Measurement:
    def __init__(self, published: str, home: Path, model: ModelServer):
        self._published, self._home, self._model = published, home, model
        self._kind = agent_types()[AGENT_TYPES[published]]
        self._row = Row(self._kind.name)
        self._updates = _Updates()
        self._workspace = home / "workspace"
        self._workspace.mkdir(parents=True)
        self._agent = real_agent(published, home / "home", model.url)
        self._token = ""
        self._loads = ""
        self._restorable: bool | None = None

    def row(self) -> Row:
        began = time.perf_counter()
        with (
            self._step("its process"),
            bare_agent(self._agent.argv, self._agent.env, str(self._workspace)) as bare,
        ):
            with self._step("start"):
                self._open(bare, began)
            with self._step("the first turn"):
                ended = self._prompt(bare, f"Please remember the word {WORD}")
                self._row.cells["usage"] = self._usage(ended)
                self._row.cells["commands"] = self._commands()
            for step in (self._permission, self._question, self._cancel):
                with self._step(step.__name__.strip("_")):
                    step(bare)
            with self._step("its notes"):
                if self._agent.keeps:
                    eventually(lambda: self._agent.has_kept(WORD), timeout=30, describe="the agent has stored the word")
        self._model.release()
        if self._restorable is False:
            self._row.cells["memory after kill -9"] = "offers none"
        elif self._restorable:
            for again in (self._restore, self._time_resumes, self._lose_store):
                with self._step(again.__name__.strip("_")):
                    again()
        return self._row

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  (whatever an agent does, the others are still measured)
            self._row.failures.append(f"{name}: {type(error).__name__}: {error}"[:500])

    def _open(self, bare: BareAgent, began: float) -> None:
        initialized = bare.initialize(elicitation={"form": {}})
        self._row.version = str((initialized.get("agentInfo") or {}).get("version", ""))
        opened = bare.call("session/new", self._listen(bare), cwd=str(self._workspace), mcpServers=[])
        self._row.cells["start"] = _seconds(time.perf_counter() - began)
        self._token = opened["sessionId"]
        self._row.cells["modes"] = _modes(opened)
        offered = offered_capabilities(initialized)
        self._restorable = bool(offered & {"load", "resume"})
        self._loads = "session/load" if "load" in offered else "session/resume"

    def _listen(self, bare: BareAgent) -> Callable[[Mapping[str, Any]], None]:
        def listen(message: Mapping[str, Any]) -> None:
            method, params = message.get("method"), message.get("params") or {}
            if method == "session/update":
                self._updates.updates.append(params.get("update") or {})
            elif method == "session/request_permission":
                self._updates.permissions += 1
                allowed = next(one for one in params["options"] if one["kind"].startswith("allow"))
                bare.answer(message, {"outcome": {"outcome": "selected", "optionId": allowed["optionId"]}})
            elif method == "elicitation/create":
                self._updates.questions += 1
                bare.answer(message, {"action": "decline"})

        return listen

    def _prompt(self, bare: BareAgent, text: str) -> Mapping[str, Any]:
        prompt = [{"type": "text", "text": text}]
        ended = bare.call("session/prompt", self._listen(bare), sessionId=self._token, prompt=prompt)
        if "error" in ended:
            raise AssertionError(ended["error"])
        return dict(ended)

    def _usage(self, ended: Mapping[str, Any]) -> str:
        reports = ["updates"] if self._updates.of("usage_update") else []
        reports += ["end of turn"] if ended.get("usage") else []
        return ", ".join(reports) or "none"

    def _commands(self) -> str:
        announced = self._updates.of("available_commands_update")
        return str(len(announced[-1]["availableCommands"])) if announced else "0"

    def _permission(self, bare: BareAgent) -> None:
        made = self._workspace / "made-by-the-agent"
        self._prompt(bare, f"RUN touch {made}")
        if self._updates.permissions:
            self._row.cells["permission"] = "asks"
        elif made.exists():
            self._row.cells["permission"] = "runs unasked"

    def _question(self, bare: BareAgent) -> None:
        called, permissions = len(self._model.calls), self._updates.permissions
        self._prompt(bare, "QUESTION for me, please")
        if len(self._model.calls) == called:
            self._row.cells["question"] = "no tool"
        elif self._updates.questions:
            self._row.cells["question"] = "elicitation"
        elif self._updates.permissions > permissions:
            self._row.cells["question"] = "as a permission"
        else:
            self._row.cells["question"] = "does not arrive"

    def _cancel(self, bare: BareAgent) -> None:
        canceled: list[float] = []

        def cancel() -> None:
            eventually(lambda: self._model.holding, timeout=60, describe="the model holds a request")
            canceled.append(time.perf_counter())
            bare.notify("session/cancel", sessionId=self._token)

        answer = threading.Timer(HOLD, self._model.release)
        threading.Thread(target=cancel, daemon=True).start()
        answer.start()
        try:
            ended = bare.call(
                "session/prompt",
                self._listen(bare),
                sessionId=self._token,
                prompt=[{"type": "text", "text": "HOLD on"}],
            )
        finally:
            answer.cancel()
        took = time.perf_counter() - canceled[0]
        reason = "error" if "error" in ended else ended["stopReason"]
        self._row.cells["cancel"] = f"{reason}, {_seconds(took)}"

    def _restore(self) -> None:
        before = len(self._model.requests)
        host = RecordingHost()
        driver = acp.create(host, {EXECUTION_MARKER: "agent-matrix"})

        async def restore() -> StartResult:
            try:
                result = await driver.start(self._request(self._agent))
                await driver.prompt("message", _QUESTION, (), lambda: None)
            finally:
                await driver.stop(0)
            return result

        try:
            result = asyncio.run(restore())
        except StartFailed as failed:
            self._row.cells["memory after kill -9"] = f"no: {failed.code}"
            return
        requests = [request for request in self._model.requests[before:] if _QUESTION in request]
        knows = any(f"remember the word {WORD}" in request for request in requests)
        self._row.cells["memory after kill -9"] = "yes" if knows else "no"
        replayed = any(WORD in text for text in result.replayed_user_texts)
        self._row.cells["replay on load"] = "yes" if replayed else "no"

    def _time_resumes(self) -> None:
        if self._row.cells.get("memory after kill -9") != "yes":
            return
        ours, bare = [], []
        for _ in range(ROUNDS):
            ours.append(asyncio.run(self._resume_time()))
            bare.append(self._bare_resume_time())
        self._row.cells["resume"] = _seconds(statistics.median(ours))
        self._row.cells["bare resume"] = _seconds(statistics.median(bare))

    async def _resume_time(self) -> float:
        driver = acp.create(RecordingHost(), {EXECUTION_MARKER: "agent-matrix"})
        began = time.perf_counter()
        try:
            await driver.start(self._request(self._agent))
            return time.perf_counter() - began
        finally:
            await driver.stop(0)

    def _bare_resume_time(self) -> float:
        began = time.perf_counter()
        with bare_agent(self._agent.argv, self._agent.env, str(self._workspace)) as bare:
            bare.initialize()
            cwd = str(self._workspace)
            loaded = bare.call(self._loads, sessionId=self._token, cwd=cwd, mcpServers=[])
            assert not isinstance(loaded, dict) or "error" not in loaded, loaded
            return time.perf_counter() - began

    def _lose_store(self) -> None:
        agent = real_agent(self._published, self._home / "fresh-home", self._model.url)
        for path in self._workspace.glob(".[!.]*"):  # some keep their conversations there
            path.rename(self._home / path.name)
        driver = acp.create(RecordingHost(), {EXECUTION_MARKER: "agent-matrix"})

        async def start() -> None:
            try:
                await driver.start(self._request(agent))
            finally:
                await driver.stop(0)

        try:
            asyncio.run(start())
        except StartFailed as failed:
            self._row.cells["lost store"] = f"error: {failed.code}" if failed.token_valid else "rejected"
        else:
            self._row.cells["lost store"] = "claims success"

    def _request(self, agent: RealAgent) -> StartRequest:
        return StartRequest(
            launch_id="launch",
            argv=agent.argv,
            env=agent.env,
            cwd=str(self._workspace),
            strategy="native",
            resume_token=self._token,
            gone_patterns=self._kind.gone_patterns,
        )


def _modes(opened: Mapping[str, Any]) -> str:
    """Return the modes announced by a new conversation, as ACP's modes or as an option of the category *mode*."""
    modes = [mode["id"] for mode in (opened.get("modes") or {}).get("availableModes", ())]
    if not modes:
        options = (one for one in opened.get("configOptions") or () if one.get("category") == "mode")
        modes = [choice["value"] for option in options for choice in option.get("options", ())]
    return ", ".join(f"`{mode}`" for mode in modes) or "none"


def _seconds(took: float) -> str:
    return f"{took:.1f} s"
