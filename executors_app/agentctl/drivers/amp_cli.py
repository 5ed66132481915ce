"""The driver for ``amp --execute``: a process per turn, its prompt on stdin, ``stream-json`` on stdout.

``amp threads continue ID`` continues a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from executors_app.agentctl.drivers import Driver, Host, StartRequest
from executors_app.agentctl.drivers.per_turn import Dialect, PerTurnDriver
from executors_app.agentctl.drivers.stream_json import StreamJsonReader


def _turn(request: StartRequest, conversation_id: str | None, images: Sequence[str]) -> list[str]:
    """Return ``amp --execute --stream-json``, or ``amp threads continue ID`` with the same options."""
    command = list(request.argv)
    if conversation_id is not None:
        command += ["threads", "continue", conversation_id]
    command += ["--execute", "--stream-json"]
    if request.model:
        command += ["--mode", request.model]  # Amp lets users choose a mode, such as ``rush``, but no model
    if request.permission_mode == "auto_approve":
        return [*command, "--dangerously-allow-all"]
    return command


DIALECT: Final = Dialect(
    name="amp",
    protocol="amp stream-json",
    turn=_turn,
    reader=lambda: StreamJsonReader(echoes=True),
)


def create(host: Host, marker: Mapping[str, str]) -> Driver:
    """Return a driver that starts the agent for each turn; ``marker`` is added to its environment."""
    return PerTurnDriver(host, marker, DIALECT)
