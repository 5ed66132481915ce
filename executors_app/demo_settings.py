"""The demo agent's settings: two modes, a switch, and the commands that it offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executors_app.demo_conversation import RpcError

MODES: Final = {"act": ("Act", "Do what the prompt says"), "plan": ("Plan", "Only say what would be written")}
_COMMANDS: Final = {
    "work": ("Work for some seconds", "seconds"),
    "remember": ("Remember a word", "word"),
    "write": ("Write a file", "file and text"),
    "tool": ("Make a tool call", ""),
    "ask": ("Ask for a permission", ""),
}
"""Description and hint of each command."""


class Settings:
    """The settings of one conversation; they begin anew with each process."""

    def __init__(self) -> None:
        self.mode, self.capitals = "act", False

    def offered(self, *, switch: bool) -> dict[str, Any]:
        """Return the modes with the present one, and the switch if the client knows such options."""
        modes = [{"id": key, "name": name, "description": more} for key, (name, more) in MODES.items()]
        told: dict[str, Any] = {"modes": {"currentModeId": self.mode, "availableModes": modes}}
        if switch:
            option = {"id": "capitals", "name": "Capitals", "description": "Answer in capital letters"}
            told["configOptions"] = [{**option, "type": "boolean", "currentValue": self.capitals}]
        return told

    def set(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Set the mode or the switch and return the answer; raises RpcError."""
        if params.get("modeId") in MODES:
            self.mode = str(params["modeId"])
            return {}
        if params.get("configId") == "capitals" and isinstance(params.get("value"), bool):
            self.capitals = params["value"]
            return {"configOptions": self.offered(switch=True)["configOptions"]}
        raise RpcError(-32602, "Invalid params: there is no such setting")


def knows_switches(params: Mapping[str, Any]) -> bool:
    """Whether the client's ``initialize`` says that it knows boolean options."""
    session = (params.get("clientCapabilities") or {}).get("session") or {}
    return (session.get("configOptions") or {}).get("boolean") is not None


def commands_update() -> dict[str, Any]:
    """Return the update that reports the commands."""
    commands = [
        {"name": name, "description": text, **({"input": {"hint": hint}} if hint else {})}
        for name, (text, hint) in _COMMANDS.items()
    ]
    return {"sessionUpdate": "available_commands_update", "availableCommands": commands}
