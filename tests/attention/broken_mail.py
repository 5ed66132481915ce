"""A mail server that fails with an error that names its password."""

from __future__ import annotations

from typing import Any

from django.core.mail.backends.base import BaseEmailBackend


class EmailBackend(BaseEmailBackend):
    """Refuses everything."""

    def send_messages(self, email_messages: Any) -> int:
        """An error with a secret in its words."""
        raise ConnectionError("smtp: wrong password hunter2")
