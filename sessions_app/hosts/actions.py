"""What staff can decide about a host, on the system page and by the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from django.contrib.auth.models import User

from sessions_app.hosts import cordons, losses


@dataclass(frozen=True, slots=True)
class HostAction:
    """A decision about a host."""

    carry_out: Callable[[str, User | None], None]
    """Called with the host's name and who decides. Raises SessionsError."""
    done: str
    """What is said afterwards, with ``{name}``."""


ACTIONS: Final[Mapping[str, HostAction]] = {
    "cordon": HostAction(cordons.cordon, "{name} takes no new sessions. What runs there goes on."),
    "drain": HostAction(cordons.drain, "{name} is drained: its sessions are stopped as they come to rest."),
    "lost": HostAction(losses.declare_lost, "{name} is lost. Its sessions there end within seconds."),
    "uncordon": HostAction(cordons.uncordon, "{name} is in service again."),
}
