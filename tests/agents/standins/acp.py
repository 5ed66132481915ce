"""A fake ACP agent with ``session/load``; turns run on a thread, so a hanging one can be cancelled."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import uuid
from typing import Any

from tests.agents.standins.behaviour import Memory, answer, print_message


class Output:
    def __init__(self, session_id: str):
        self._session_id = session_id
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.message = ""

    def update(self, name: str, /, **body: Any) -> None:
        update = {"sessionUpdate": name, **body}
        print_message(jsonrpc="2.0", method="session/update", params={"sessionId": self._session_id, "update": update})

    def say(self, text: str) -> None:
        self.update("agent_message_chunk", content={"type": "text", "text": text})

    def use_tool(self, command: str, output: str) -> None:
        call = str(uuid.uuid4())
        what = {"title": command, "kind": "execute", "rawInput": {"command": command}}
        self.update("tool_call", toolCallId=call, status="in_progress", **what)
        content = [{"type": "content", "content": {"type": "text", "text": output}}]
        self.update("tool_call_update", toolCallId=call, status="completed", content=content)

    def ask(self, command: str) -> str:
        options = [{"optionId": kind, "name": kind, "kind": f"{kind}_once"} for kind in ("allow", "reject")]
        call = {"toolCallId": "call-1", "title": command, "kind": "execute"}
        params = {"sessionId": self._session_id, "toolCall": call, "options": options}
        print_message(jsonrpc="2.0", id="question", method="session/request_permission", params=params)
        chosen = self.answers.get()["result"]["outcome"]
        return str(chosen.get("optionId", chosen["outcome"]))

    def fail(self, message: str) -> None:
        self.message = message


class Agent:
    def __init__(self) -> None:
        self.memory = Memory("none")
        self.out = Output("none")
        self.turn: Any = None

    def initialize(self, params: Any) -> Any:
        return {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}, "agentInfo": {"name": "stand-in"}}

    def session_new(self, params: Any) -> Any:
        self.memory = Memory.create()
        return {"sessionId": self.memory.id}

    def session_load(self, params: Any) -> Any:
        memory = Memory.load(params["sessionId"])
        if memory is None:
            raise LookupError(f"no conversation {params['sessionId']}")
        self.memory = memory
        return {}

    def take_turn(self, turn: Any, text: str) -> None:
        done = answer(self.memory, text, self.out)
        if turn != self.turn:
            return
        if done:
            usage = {"inputTokens": 10, "outputTokens": 2}
            print_message(jsonrpc="2.0", id=turn, result={"stopReason": "end_turn", "usage": usage})
        else:
            print_message(jsonrpc="2.0", id=turn, error={"code": -32603, "message": self.out.message})

    def read(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case None:
                self.out.answers.put(message)
            case "session/prompt":
                self.turn, self.out = message["id"], Output(self.memory.id)
                text = message["params"]["prompt"][0]["text"]
                threading.Thread(target=self.take_turn, args=(self.turn, text), daemon=True).start()
            case "session/cancel":
                cancelled, self.turn = self.turn, None
                print_message(jsonrpc="2.0", id=cancelled, result={"stopReason": "cancelled"})
            case method:
                self.serve(message["id"], method, message["params"])

    def serve(self, request_id: Any, method: str, params: Any) -> None:
        try:
            result = getattr(self, method.replace("/", "_"))(params)
            print_message(jsonrpc="2.0", id=request_id, result=result)
        except LookupError as error:
            print_message(jsonrpc="2.0", id=request_id, error={"code": -32603, "message": str(error)})


def main() -> None:
    agent = Agent()
    for line in sys.stdin:
        agent.read(json.loads(line))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
