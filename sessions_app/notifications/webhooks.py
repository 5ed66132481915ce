"""One call of a webhook: signed, to an address that was looked up and checked just now, and to no other.

The name is resolved once, every address it has is judged, and the connection is made to the one that was
judged: a name that changes its mind in between (DNS rebinding) changes nothing. Redirects are not followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from django.conf import settings

from sessions_app.notifications.webhook_address import (
    InvalidWebhookAddress,
    WebhookAddress,
    is_public,
    parse_webhook_address,
)

TIMEOUT: Final = 10.0
"""Seconds for a whole call."""
MAX_RESPONSE_BYTES: Final = 64 * 1024
"""Bytes of an answer that are read; the rest is nobody's."""
SIGNATURE_HEADER: Final = "X-Kandev-Signature"
TIMESTAMP_HEADER: Final = "X-Kandev-Timestamp"


class WebhookFailed(Exception):
    """The call did not arrive; the message says why, for people, and holds nothing of the answer's body."""

    def __init__(self, message: str, *, permanent: bool = False):
        super().__init__(message)
        self.permanent = permanent
        """Trying again would change nothing."""


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """What is sent, and where."""

    url: str
    secret: str
    body: bytes
    delivery_id: str
    event: str


def check_address(url: str) -> None:
    """Whether a webhook may lead there, as its name resolves now; BadAddress if not."""
    _resolve(parse_webhook_address(url, settings.KANDEV_WEBHOOK_ALLOWED_HOSTS))


def sign_payload(secret: str, timestamp: str, body: bytes) -> str:
    """``v1=`` and the HMAC-SHA256 of ``timestamp.body`` in hexadecimal."""
    return "v1=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def send_webhook(told: WebhookRequest) -> int:
    """Make it; the status of a good answer (200 to 299). CallFailed for anything else."""
    try:
        address = parse_webhook_address(told.url, settings.KANDEV_WEBHOOK_ALLOWED_HOSTS)
        ip = _resolve(address)
    except InvalidWebhookAddress as error:
        raise WebhookFailed(str(error), permanent=True) from error
    except OSError as error:
        raise WebhookFailed(f"The host name cannot be resolved: {_error_text(error)}.") from error
    try:
        status = _post(address, ip, told)
    except (OSError, http.client.HTTPException) as error:
        raise WebhookFailed(f"The host could not be reached: {_error_text(error)}.") from error
    if not 200 <= status < 300:
        raise WebhookFailed(f"The server answered {status}.", permanent=status == 410)
    return status


def _resolve(address: WebhookAddress) -> str:
    """The address to connect to; BadAddress where any that the name has is not of the open internet."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(error.strerror or "unknown name") from error
    addresses = [str(entry[4][0]) for entry in found]
    if not address.is_trusted and not all(map(is_public, addresses)):
        raise InvalidWebhookAddress(
            "This host is in a private network or on this machine. Staff can allow it in KANDEV_WEBHOOK_ALLOWED_HOSTS."
        )
    return addresses[0]


def _post(address: WebhookAddress, ip: str, told: WebhookRequest) -> int:
    with contextlib.closing(_connect(address, ip)) as connection, _with_deadline(TIMEOUT, connection.sock):
        if isinstance(connection.sock, ssl.SSLSocket):
            connection.sock.do_handshake()
        connection.putrequest("POST", address.target, skip_host=True, skip_accept_encoding=True)
        for name, value in _headers(address, told).items():
            connection.putheader(name, value)
        connection.endheaders(told.body)
        answer = connection.getresponse()
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer.read(MAX_RESPONSE_BYTES)  # so that the far end is heard out; what it says is not kept
        return answer.status


@contextlib.contextmanager
def _with_deadline(seconds: float, sock: socket.socket) -> Iterator[None]:
    """Whoever drips a byte now and then is cut off all the same."""
    timer = threading.Timer(seconds, _cut, [sock])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _headers(address: WebhookAddress, told: WebhookRequest) -> Mapping[str, str]:
    timestamp = str(int(time.time()))
    return {
        "Host": address.authority,
        "Content-Type": "application/json",
        "Content-Length": str(len(told.body)),
        "User-Agent": "Kandev",
        "X-Kandev-Event": told.event,
        "X-Kandev-Delivery": told.delivery_id,
        TIMESTAMP_HEADER: timestamp,
        SIGNATURE_HEADER: sign_payload(told.secret, timestamp, told.body),
        "Connection": "close",
    }


def _connect(address: WebhookAddress, ip: str) -> http.client.HTTPConnection:
    """A connection to ``ip``, which has still to show a certificate for ``address.host``."""
    raw = socket.create_connection((ip, address.port), timeout=TIMEOUT)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT)
    connection.sock = raw
    if address.scheme == "https":
        secure = ssl.create_default_context()
        connection.sock = secure.wrap_socket(raw, server_hostname=address.host, do_handshake_on_connect=False)
    return connection


def _error_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "no secure connection"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or type(error).__name__)
