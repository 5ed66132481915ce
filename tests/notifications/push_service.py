"""A push service and a browser as RFC 8291 and RFC 8292 specify them: they decrypt messages and check signatures."""

from __future__ import annotations

import base64
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.docker.certificates import SERVER, Authority
from tests.notifications.receiver import Receiver, receiving


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def from_base64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class FakeBrowser:
    """A browser that has subscribed: what it tells the server, and what it reads."""

    def __init__(self, private_key: ec.EllipticCurvePrivateKey | None = None, auth: bytes | None = None):
        self._private = private_key or ec.generate_private_key(ec.SECP256R1())
        self._public = self._private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self._auth = auth or os.urandom(16)

    def subscription(self, endpoint: str) -> dict[str, str]:
        """Return the fields of the form that describe the browser."""
        return {"endpoint": endpoint, "key": base64url(self._public), "auth": base64url(self._auth)}

    def decrypt(self, body: bytes) -> bytes:
        """Return the message in the body of a request, without its padding."""
        salt, size, length = body[:16], int.from_bytes(body[16:20], "big"), body[20]
        sender, record = body[21 : 21 + length], body[21 + length :]
        assert len(record) <= size
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender)
        shared = self._private.exchange(ec.ECDH(), point)
        info = b"WebPush: info\x00" + self._public + sender
        secret = HKDF(SHA256(), 32, salt=self._auth, info=info).derive(shared)
        key = HKDF(SHA256(), 16, salt=salt, info=b"Content-Encoding: aes128gcm\x00").derive(secret)
        nonce = HKDF(SHA256(), 12, salt=salt, info=b"Content-Encoding: nonce\x00").derive(secret)
        text = AESGCM(key).decrypt(nonce, record, None).rstrip(b"\x00")
        assert text[-1:] == b"\x02", "the last record"
        return text[:-1]

    def read(self, body: bytes) -> dict[str, Any]:
        """Return the notification in the body of a request."""
        notification: dict[str, Any] = json.loads(self.decrypt(body))
        return notification


def signed_claims(headers: dict[str, str], application_key: str) -> dict[str, Any]:
    """Return what a request claims; fail unless this application has signed it."""
    scheme, _, rest = headers["authorization"].partition(" ")
    values = dict(part.strip().split("=", 1) for part in rest.split(","))
    assert (scheme, values["k"]) == ("vapid", application_key)
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), from_base64url(values["k"]))
    claims: dict[str, Any] = jwt.decode(values["t"], key, algorithms=["ES256"], options={"verify_aud": False})
    return claims


@contextmanager
def push_service(place: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Receiver]:
    """Run a push service with TLS on this machine, which the deployment is allowed to call."""
    authority = Authority(place / "authority")
    pair = authority.issue("push", SERVER, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with receiving(context) as receiver:
        receiver.status = 201
        settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = (receiver.authority,)
        yield receiver


def endpoint_of(receiver: Receiver, name: str = "one") -> str:
    """Return the address of a subscription at this service."""
    return f"https://{receiver.authority}/send/{name}"
