"""Encrypt a message for one browser (RFC 8291), and hand it, signed (RFC 8292), to the browser's push service."""

from __future__ import annotations

import base64
import os
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sessions_app.notifications.webhooks import WebhookFailed, post

MAX_ENDPOINT_LENGTH: Final = 1000
"""Characters of a subscription's address; those of browsers have 150 to 700."""
PADDED_BYTES: Final = 2500
"""Every message is padded to this length, so that its length tells a push service nothing."""
TIME_TO_LIVE: Final = 86_400
"""Seconds for which a push service keeps a message for a device that is off."""
_RECORD_SIZE: Final = 4096
_KEY_BYTES: Final = 65
_AUTH_BYTES: Final = 16
_SALT_BYTES: Final = 16
_TOKEN_LIFETIME: Final = 12 * 3600
"""Seconds; push services refuse more than 24 hours."""
_LAST_RECORD: Final = b"\x02"


class DeviceGone(WebhookFailed):
    """The browser has unsubscribed: its push service takes no more messages for it."""

    def __init__(self) -> None:
        super().__init__("The browser no longer accepts notifications of this site.", permanent=True)


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where messages to a browser go, and the keys with which they are encrypted for it."""

    endpoint: str
    key: bytes
    """Its public key: an uncompressed point of P-256."""
    auth: bytes
    """Its authentication secret."""

    @classmethod
    def parse(cls, endpoint: str, key: str, auth: str) -> Receiver:
        """Return the receiver that a browser describes, in base64url; raise ValueError for anything else.

        Only the form of the endpoint is checked here.
        """
        if not endpoint.startswith("https://") or len(endpoint) > MAX_ENDPOINT_LENGTH:
            raise ValueError("endpoint")
        found = cls(endpoint, decode(key), decode(auth))
        if len(found.key) != _KEY_BYTES or len(found.auth) != _AUTH_BYTES:
            raise ValueError("keys")
        _public_key(found.key)
        return found


@dataclass(frozen=True, slots=True)
class PushRequest:
    """One message to one browser."""

    receiver: Receiver
    payload: bytes
    signing_key: ec.EllipticCurvePrivateKey
    contact: str
    """A ``mailto:`` or ``https:`` address of those who run this deployment."""
    is_urgent: bool = False


def send_push(request: PushRequest) -> None:
    """Hand the message to the push service. Raise DeviceGone if it has no such subscription, or else WebhookFailed."""
    urgency = "normal"
    if request.is_urgent:
        urgency = "high"
    headers = {
        "Authorization": _authorization(request),
        "Content-Encoding": "aes128gcm",
        "Content-Type": "application/octet-stream",
        "TTL": str(TIME_TO_LIVE),
        "Urgency": urgency,
    }
    body = encrypt(request.payload, request.receiver, padded_to=PADDED_BYTES)
    status = post(request.receiver.endpoint, headers, body, max_length=MAX_ENDPOINT_LENGTH)
    if status in (404, 410):
        raise DeviceGone
    if not 200 <= status < 300:
        # Anything but a busy or broken service refuses this message the next time, too.
        is_permanent = 400 <= status < 500 and status not in (408, 429)
        raise WebhookFailed(f"The push service answered {status}.", permanent=is_permanent)


def encrypt(
    payload: bytes,
    receiver: Receiver,
    *,
    padded_to: int = 0,
    sender: ec.EllipticCurvePrivateKey | None = None,
    salt: bytes | None = None,
) -> bytes:
    """Return the body of a request with ``payload`` in one record; key and salt are new ones unless given."""
    sender = sender or ec.generate_private_key(ec.SECP256R1())
    salt = salt or os.urandom(_SALT_BYTES)
    own_key = encode_public_key(sender)
    shared = sender.exchange(ec.ECDH(), _public_key(receiver.key))
    secret = _derive(shared, receiver.auth, b"WebPush: info\0" + receiver.key + own_key, 32)
    content_key = _derive(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _derive(secret, salt, b"Content-Encoding: nonce\0", 12)
    record = (payload + _LAST_RECORD).ljust(padded_to, b"\0")
    header = salt + _RECORD_SIZE.to_bytes(4, "big") + bytes([len(own_key)]) + own_key
    return header + AESGCM(content_key).encrypt(nonce, record, None)


def encode_public_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public key as an uncompressed point."""
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def encode(data: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode(text: str) -> bytes:
    """Return the bytes of base64url with or without padding; raise ValueError for anything else."""
    if len(text) > 2 * _KEY_BYTES:
        raise ValueError("too long")
    bare = text.rstrip("=")
    return base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)


def _public_key(point: bytes) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)


def _derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt=salt, info=info).derive(secret)


def _authorization(request: PushRequest) -> str:
    parts = urlsplit(request.receiver.endpoint)
    claims = {
        "aud": f"{parts.scheme}://{parts.netloc}",
        "exp": int(time.time()) + _TOKEN_LIFETIME,
        "sub": request.contact,
    }
    token = jwt.encode(claims, request.signing_key, algorithm="ES256")
    return f"vapid t={token}, k={encode(encode_public_key(request.signing_key))}"
