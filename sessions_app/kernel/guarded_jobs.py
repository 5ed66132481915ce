"""Periodic work on one session, whose failure never stops the work on the others."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from sessions_app.models import LeaseLost

log = logging.getLogger(__name__)


def guard_job(session_id: uuid.UUID, about: str, do: Callable[..., int], *args: Any) -> int:
    """Call ``do`` and return its count; log its failure and return 0, so that one bad row never stops the others."""
    try:
        return do(*args)
    except LeaseLost:
        return 0
    except Exception:
        log.exception("session %s: %s could not be looked after", session_id, about)
        return 0
