"""Deploy keys, and the keys by which servers are recognised."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

MAX_KEY: Final = 16_384
"""Characters of a private key that is pasted."""
MAX_HOST_KEYS: Final = 8
_MAX_HOST_KEY: Final = 4096
_COMMENT: Final = "kandev"
_HOST_KEY_TYPES: Final = frozenset(
    {
        "ssh-ed25519",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "ssh-rsa",
        "sk-ssh-ed25519@openssh.com",
    }
)


class BadKey(ValueError):
    """A text that is no usable key; its message says what to paste instead."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A deploy key."""

    private: str
    """In OpenSSH's own format, without a passphrase."""
    public: str
    """One line, to be given to the server."""

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r})"


def generate_key() -> KeyPair:
    """Return a new ed25519 key."""
    return _pair(Ed25519PrivateKey.generate())


def read_key(text: str) -> KeyPair:
    """Return the key in a text that was pasted; raises BadKey."""
    if len(text) > MAX_KEY:
        raise BadKey("This is too long for a private key.")
    try:
        key = load_ssh_private_key(f"{text.strip()}\n".encode(), password=None)
    except TypeError:
        raise BadKey("The key has a passphrase. Paste one without, or let Kandev generate a key.") from None
    except (ValueError, UnsupportedAlgorithm):
        raise BadKey("This is no private key in OpenSSH's format (BEGIN OPENSSH PRIVATE KEY).") from None
    if not isinstance(key, Ed25519PrivateKey | RSAPrivateKey | EllipticCurvePrivateKey):
        raise BadKey("Keys of this type are not supported. Use ed25519.")
    return _pair(key)


def _pair(key: Ed25519PrivateKey | RSAPrivateKey | EllipticCurvePrivateKey) -> KeyPair:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return KeyPair(private, f"{public} {_COMMENT}")


@dataclass(frozen=True, slots=True)
class HostKey:
    """A key by which a server proves who it is."""

    type: str
    blob: str
    """In base64."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint as ssh shows it."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"

    def __str__(self) -> str:
        return f"{self.type} {self.blob}"


def read_host_keys(lines: Iterable[str]) -> list[HostKey]:
    """Return the keys in lines of ``type key`` or ``host type key``; everything else is left out."""
    found: list[HostKey] = []
    for line in lines:
        words = line.split()
        if len(line) <= _MAX_HOST_KEY and len(words) in {2, 3} and (key := _host_key(words[-2], words[-1])):
            found.append(key)
    unique = dict.fromkeys(found)
    return sorted(unique, key=lambda key: key.type)[:MAX_HOST_KEYS]


def _host_key(kind: str, blob: str) -> HostKey | None:
    if kind not in _HOST_KEY_TYPES:
        return None
    try:
        data = base64.b64decode(blob, validate=True)
    except (ValueError, binascii.Error):
        return None
    if not data.startswith(len(kind).to_bytes(4, "big") + kind.encode()):
        return None
    return HostKey(kind, blob)


def known_hosts_file(host: str, keys: Iterable[HostKey]) -> str:
    """Return ssh's file of known hosts for one host."""
    return "".join(f"{host} {key}\n" for key in keys)
