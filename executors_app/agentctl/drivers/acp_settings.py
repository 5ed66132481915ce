"""What a conversation is to run with: its model and its mode, chosen anew each time one is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from executors_app.agentctl.drivers.acp_wire import RpcError, Wire

Name = Literal["model", "mode"]
_OFFERED: Final[Mapping[Name, tuple[str, str, str, str]]] = {
    "model": ("models", "availableModels", "modelId", "session/set_model"),
    "mode": ("modes", "availableModes", "id", "session/set_mode"),
}
"""Where an agent tells what it offers, and how to choose of that."""


async def choose(
    wire: Wire, conversation_id: str, told: Mapping[str, Any], *, name: Name, wanted: str, limit: float
) -> str | None:
    """Select the model or mode ``wanted``, an id or a name; why it was not taken, None where it was.

    Best effort: a conversation with another model is better than none, and an agent that does not
    answer in ``limit`` seconds may still take prompts. ``told`` is its answer to the opening.
    """
    call = _call(told, name, wanted)
    if call is None:
        return "the agent does not offer it"
    method, params = call
    try:
        async with asyncio.timeout(limit):
            await wire.call(method, {"sessionId": conversation_id, **params})
    except RpcError as error:
        return error.text
    except TimeoutError:
        return f"the agent did not answer within {limit:g} s"
    return None


def _call(told: Mapping[str, Any], name: Name, wanted: str) -> tuple[str, dict[str, Any]] | None:
    for option in _sequence(told.get("configOptions")):
        is_meant = name in (option.get("category"), option.get("id"))
        if is_meant and (value := _offered(wanted, _choices(option), "value")) is not None:
            return "session/set_config_option", {"configId": option.get("id"), "value": value}
    field, choices, key, method = _OFFERED[name]
    state = told.get(field)
    value = _offered(wanted, _sequence(state.get(choices)) if isinstance(state, dict) else (), key)
    return None if value is None else (method, {f"{name}Id": value})


def _choices(option: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The values of a select option, in groups or not."""
    for choice in _sequence(option.get("options")):
        yield from _sequence(choice["options"]) if "options" in choice else (choice,)


def _offered(wanted: str, choices: Iterable[Mapping[str, Any]], key: str) -> str | None:
    meant = wanted.casefold()
    for choice in choices:
        if meant in (str(choice.get(key)).casefold(), str(choice.get("name")).casefold()):
            return str(choice.get(key))
    return None


def _sequence(value: Any) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
