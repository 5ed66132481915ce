"""A fake ``claude -p`` with ``stream-json`` in both directions and the control protocol of its SDK.

A turn runs on a thread, so that an interrupt is read while it hangs.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

from tests.agents.standins.behaviour import HOME, Memory, answer, print_message
from tests.agents.standins.messages import MessageOutput


class Output(MessageOutput):
    def __init__(self, session_id: str):
        super().__init__(session_id, with_uuids=True)
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()

    def ask(self, command: str) -> str:
        suggested = [{"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": command}]}]
        request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": command}}
        more = {"tool_use_id": "toolu_1", "permission_suggestions": suggested}
        print_message(type="control_request", request_id="question-1", request={**request, **more})
        response = self.answers.get()["response"]["response"]
        return f"{response['behavior']}{' for ever' if 'updatedPermissions' in response else ''}"

    def fail(self, message: str) -> None:
        self.result(is_error=True, result=f"API Error: {message}")


class Agent:
    def __init__(self, memory: Memory):
        self.memory = memory
        self.out = Output(memory.id)
        self.turn = 0

    def read(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "control_request":
                self.serve(message["request_id"], message["request"])
            case "control_response":
                self.out.answers.put(message)
            case "user":
                self.turn += 1
                text = message["message"]["content"][0]["text"]
                threading.Thread(target=self.take_turn, args=(self.turn, text), daemon=True).start()

    def serve(self, request_id: str, request: dict[str, Any]) -> None:
        with (HOME / "asked").open("a") as file:
            file.write(json.dumps(request) + "\n")
        if request["subtype"] == "interrupt":
            self.turn += 1
        print_message(
            type="control_response", response={"subtype": "success", "request_id": request_id, "response": {}}
        )
        if request["subtype"] == "interrupt":
            self.out.result("error_during_execution", is_error=True, errors=["Request was aborted."])

    def take_turn(self, turn: int, text: str) -> None:
        self.out.begin()
        if answer(self.memory, text, self.out) and turn == self.turn:
            self.memory_at(self.out.last_uuid)
            self.out.result(result="done", stop_reason="end_turn")

    def memory_at(self, uuid: str) -> None:
        (self.memory.path_of_messages()).open("a").write(uuid + "\n")


def option(name: str) -> str | None:
    return next((word.partition("=")[2] for word in sys.argv if word.startswith(f"--{name}=")), None)


def refuse(text: str, session_id: str) -> None:
    print_message(type="result", subtype="error_during_execution", is_error=True, errors=[text], session_id=session_id)
    sys.stderr.write(text + "\n")
    sys.exit(1)


def main() -> None:
    if model := option("model"):
        HOME.mkdir(parents=True, exist_ok=True)
        with (HOME / "models").open("a") as models:
            models.write(f"{model}\n")
    resumed, at = option("resume"), option("resume-session-at")
    memory = Memory.load(resumed) if resumed else Memory.create(option("session-id"))
    if memory is None:
        refuse(f"No conversation found with session ID: {resumed}", str(resumed))
        return
    if at and at not in memory.path_of_messages().read_text().split():
        refuse(f"No message found with message.uuid of: {at}", str(resumed))
    agent = Agent(memory)
    for line in sys.stdin:
        agent.read(json.loads(line))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
