"""Where e-mail goes out: one URL, taken apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from kandev.environment import MAIL_SCHEMES


@dataclass(frozen=True, slots=True)
class MailServer:
    """What Django wants to know of it."""

    host: str = "localhost"
    port: int = 25
    user: str = ""
    password: str = field(default="", repr=False)
    starttls: bool = False
    tls: bool = False


def mail_server(url: str) -> MailServer:
    """The server of a checked ``KANDEV_EMAIL_URL``; without one what Django has by itself."""
    if not url:
        return MailServer()
    parts = urlsplit(url)
    return MailServer(
        host=parts.hostname or "",
        port=parts.port or MAIL_SCHEMES[parts.scheme],
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        starttls=parts.scheme == "smtp",
        tls=parts.scheme == "smtps",
    )
