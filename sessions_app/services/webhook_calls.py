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

from sessions_app.domain.webhook_address import Address, BadAddress, is_public, parse

TIMEOUT: Final = 10.0
"""Seconds for a whole call."""
ANSWER_LIMIT: Final = 64 * 1024
"""Bytes of an answer that are read; the rest is nobody's."""
SIGNATURE: Final = "X-Kandev-Signature"
TIMESTAMP: Final = "X-Kandev-Timestamp"


class CallFailed(Exception):
    """The call did not arrive; the message says why, for people, and holds nothing of the answer's body."""

    def __init__(self, message: str, *, permanent: bool = False):
        super().__init__(message)
        self.permanent = permanent
        """Trying again would change nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is sent, and where."""

    url: str
    secret: str
    body: bytes
    delivery_id: str
    event: str


def check_address(url: str) -> None:
    """Whether a webhook may lead there, as its name resolves now; BadAddress if not."""
    _resolve(parse(url, settings.KANDEV_WEBHOOK_ALLOWED_HOSTS))


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """``v1=`` and the HMAC-SHA256 of ``timestamp.body`` in hexadecimal."""
    return "v1=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def call(told: Call) -> int:
    """Make it; the status of a good answer (200 to 299). CallFailed for anything else."""
    try:
        address = parse(told.url, settings.KANDEV_WEBHOOK_ALLOWED_HOSTS)
        ip = _resolve(address)
    except BadAddress as error:
        raise CallFailed(str(error), permanent=True) from error
    except OSError as error:
        raise CallFailed(f"Its name cannot be resolved: {_plain(error)}.") from error
    try:
        status = _post(address, ip, told)
    except (OSError, http.client.HTTPException) as error:
        raise CallFailed(f"It could not be reached: {_plain(error)}.") from error
    if not 200 <= status < 300:
        raise CallFailed(f"It answered {status}.", permanent=status == 410)
    return status


def _resolve(address: Address) -> str:
    """The address to connect to; BadAddress where any that the name has is not of the open internet."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(error.strerror or "unknown name") from error
    addresses = [str(entry[4][0]) for entry in found]
    if not address.is_trusted and not all(map(is_public, addresses)):
        raise BadAddress("This host is in a private network, or on this machine. Only staff can allow it.")
    return addresses[0]


def _post(address: Address, ip: str, told: Call) -> int:
    with contextlib.closing(_connect(address, ip)) as connection, _within(TIMEOUT, connection.sock):
        if isinstance(connection.sock, ssl.SSLSocket):
            connection.sock.do_handshake()
        connection.putrequest("POST", address.target, skip_host=True, skip_accept_encoding=True)
        for name, value in _headers(address, told).items():
            connection.putheader(name, value)
        connection.endheaders(told.body)
        answer = connection.getresponse()
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer.read(ANSWER_LIMIT)  # so that the far end is heard out; what it says is not kept
        return answer.status


@contextlib.contextmanager
def _within(seconds: float, sock: socket.socket) -> Iterator[None]:
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


def _headers(address: Address, told: Call) -> Mapping[str, str]:
    timestamp = str(int(time.time()))
    return {
        "Host": address.authority,
        "Content-Type": "application/json",
        "Content-Length": str(len(told.body)),
        "User-Agent": "Kandev",
        "X-Kandev-Event": told.event,
        "X-Kandev-Delivery": told.delivery_id,
        TIMESTAMP: timestamp,
        SIGNATURE: signature(told.secret, timestamp, told.body),
        "Connection": "close",
    }


def _connect(address: Address, ip: str) -> http.client.HTTPConnection:
    """A connection to ``ip``, which has still to show a certificate for ``address.host``."""
    raw = socket.create_connection((ip, address.port), timeout=TIMEOUT)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT)
    connection.sock = raw
    if address.scheme == "https":
        secure = ssl.create_default_context()
        connection.sock = secure.wrap_socket(raw, server_hostname=address.host, do_handshake_on_connect=False)
    return connection


def _plain(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "no secure connection"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or type(error).__name__)
