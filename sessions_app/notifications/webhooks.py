"""Send one signed webhook request, to an address that was resolved and checked just before.

The name is resolved once, all its addresses are checked, and the connection goes to a checked address. So a name
that resolves differently a moment later (DNS rebinding) has no effect. Redirects are not followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from django.conf import settings

from sessions_app.notifications.webhook_address import (
    MAX_URL_LENGTH,
    InvalidWebhookAddress,
    WebhookAddress,
    is_public,
    parse_webhook_address,
)

TIMEOUT: Final = 10.0
"""Seconds for a whole request, once the connection is open."""
CONNECT_TIMEOUT: Final = 5.0
"""Seconds to resolve the name of a host, and as many to connect to it."""
MAX_RESPONSE_BYTES: Final = 64 * 1024
"""Maximum number of bytes of a response that are read."""
SIGNATURE_HEADER: Final = "X-Kandev-Signature"
TIMESTAMP_HEADER: Final = "X-Kandev-Timestamp"


class WebhookFailed(Exception):
    """The request failed. The message is for people and contains nothing of the response's body."""

    def __init__(self, message: str, *, permanent: bool = False):
        super().__init__(message)
        self.permanent = permanent
        """A retry would fail, too."""


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """A request to send."""

    url: str
    secret: str
    body: bytes
    delivery_id: str
    event: str


def check_address(url: str, max_length: int = MAX_URL_LENGTH) -> None:
    """Raise InvalidWebhookAddress unless webhooks may use this URL, as its name resolves now."""
    _resolve(parse_webhook_address(url, settings.KANDEV_WEBHOOK_ALLOWED_HOSTS, max_length=max_length))


def sign_payload(secret: str, timestamp: str, body: bytes) -> str:
    """Return ``v1=`` and the HMAC-SHA256 of ``timestamp.body`` in hexadecimal."""
    return "v1=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def send_webhook(request: WebhookRequest) -> int:
    """Send the request; return the status if it is 200 to 299, otherwise raise WebhookFailed."""
    status = post(request.url, _headers(request), request.body)
    if not 200 <= status < 300:
        raise WebhookFailed(f"The server answered {status}.", permanent=status == 410)
    return status


def post(url: str, headers: Mapping[str, str], body: bytes, *, max_length: int = MAX_URL_LENGTH) -> int:
    """Send a POST request to a URL of a user's choice and return the status, whatever it is.

    Raise WebhookFailed if the URL is refused, or its server does not answer.
    """
    try:
        address = parse_webhook_address(url, settings.KANDEV_WEBHOOK_ALLOWED_HOSTS, max_length=max_length)
        ip = _resolve(address)
    except InvalidWebhookAddress as error:
        raise WebhookFailed(str(error), permanent=True) from error
    except OSError as error:
        raise WebhookFailed(f"The host name cannot be resolved: {_error_text(error)}.") from error
    try:
        return _post(address, ip, headers, body)
    except (OSError, http.client.HTTPException) as error:
        raise WebhookFailed(f"The host could not be reached: {_error_text(error)}.") from error


def _resolve(address: WebhookAddress) -> str:
    """Return the IP address to connect to. Raise InvalidWebhookAddress if any address of the name is not public."""
    addresses = _look_up(address.host, address.port)
    if not address.is_trusted and not all(map(is_public, addresses)):
        raise InvalidWebhookAddress(
            "This host is in a private network or on this machine. Staff can allow it in KANDEV_WEBHOOK_ALLOWED_HOSTS."
        )
    return addresses[0]


def _look_up(host: str, port: int) -> list[str]:
    """Return the IP addresses of a name; raises OSError, also if its name server does not answer in time.

    The system's resolver has no deadline of its own, and whoever owns the name decides how slow it is: a thread that
    is left behind waits for it.
    """
    answer: queue.SimpleQueue[list[str] | OSError] = queue.SimpleQueue()

    def resolve() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            answer.put(OSError(error.strerror or "unknown name"))
        except (OSError, UnicodeError) as error:
            answer.put(OSError(str(error)))
        else:
            answer.put([str(entry[4][0]) for entry in found])

    threading.Thread(target=resolve, name="resolver", daemon=True).start()
    try:
        result = answer.get(timeout=CONNECT_TIMEOUT)
    except queue.Empty:
        raise TimeoutError("no answer in time") from None
    if isinstance(result, OSError):
        raise result
    return result


def _post(address: WebhookAddress, ip: str, headers: Mapping[str, str], body: bytes) -> int:
    own = {"Host": address.authority, "Content-Length": str(len(body)), "User-Agent": "Kandev", "Connection": "close"}
    with contextlib.closing(_connect(address, ip)) as connection, _with_deadline(TIMEOUT, connection.sock):
        if isinstance(connection.sock, ssl.SSLSocket):
            connection.sock.do_handshake()
        connection.putrequest("POST", address.target, skip_host=True, skip_accept_encoding=True)
        for name, value in {**headers, **own}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer.read(MAX_RESPONSE_BYTES)  # so that the receiver can finish its response; it is not kept
        return answer.status


@contextlib.contextmanager
def _with_deadline(seconds: float, sock: socket.socket) -> Iterator[None]:
    """Close the socket after ``seconds``, even if the receiver keeps sending a byte now and then."""
    timer = threading.Timer(seconds, _cut, [sock])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # The method of the base class: SSLSocket.shutdown discards the TLS state that the sending thread is using.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _headers(request: WebhookRequest) -> Mapping[str, str]:
    timestamp = str(int(time.time()))
    return {
        "Content-Type": "application/json",
        "X-Kandev-Event": request.event,
        "X-Kandev-Delivery": request.delivery_id,
        TIMESTAMP_HEADER: timestamp,
        SIGNATURE_HEADER: sign_payload(request.secret, timestamp, request.body),
    }


def _connect(address: WebhookAddress, ip: str) -> http.client.HTTPConnection:
    """Connect to ``ip``; with https it must present a certificate for ``address.host``."""
    raw = socket.create_connection((ip, address.port), timeout=CONNECT_TIMEOUT)
    raw.settimeout(TIMEOUT)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT)
    connection.sock = raw
    if address.scheme == "https":
        secure = ssl.create_default_context()
        # No handshake yet: the caller does it under the deadline of the whole request.
        connection.sock = secure.wrap_socket(raw, server_hostname=address.host, do_handshake_on_connect=False)
    return connection


def _error_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason:
            return error.reason.replace("_", " ").lower()
        return "no secure connection"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or type(error).__name__)
