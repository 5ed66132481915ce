"""The pool of limited processes that read text, see ``sessions_app.confined``."""

from __future__ import annotations

from typing import Final

from sessions_app.confined.client import ConfinedPool

TEXT_POOL: Final = ConfinedPool("sessions_app.rendering.operations", running=4, waiting_per_owner=4)
