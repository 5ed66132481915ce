"""A mail server that fails with an error that names its password."""

from __future__ import annotations

from typing import Any

from django.core.mail.backends.base import BaseEmailBackend


class EmailBackend(BaseEmailBackend):
    """A backend that refuses every message."""

    def send_messages(self, email_messages: Any) -> int:
        """Raise an error that contains a password."""
        raise ConnectionError("smtp: wrong password hunter2")
