"""A webhook receiver such as a user would write: it checks each signature and returns a configured status."""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import PATIENCE


@dataclass
class Receiver:
    """The requests received, and the response to give."""

    port: int = 0
    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    hangs: threading.Event | None = None
    """If set, it does not answer before this event."""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Return the URL of the receiver."""
        return f"http://127.0.0.1:{self.port}/hook?x=1"

    @property
    def authority(self) -> str:
        """Return the host and port with which a deployment allows it."""
        return f"127.0.0.1:{self.port}"

    def calls(self) -> list[dict[str, Any]]:
        """Return the decoded bodies of the requests."""
        return [json.loads(body) for _, body in self.requests]


def is_genuine(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a signature is valid, computed as documented."""
    signed = headers["x-kandev-timestamp"].encode() + b"." + body
    expected = "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, headers["x-kandev-signature"])


@contextmanager
def receiving(secure: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver on this machine, with TLS if a context is given."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.requests.append(({**headers, ":path": self.path}, body))
            if receiver.hangs is not None:
                receiver.hangs.wait(PATIENCE)
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    if secure is not None:
        server.socket = secure.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
