"""Addresses of the servers that branches are pushed to: only https and ssh, and never with a password in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

MAX_ADDRESS: Final = 500
_HOST: Final = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?"
_IPV6: Final = r"\[[0-9A-Fa-f:.]{2,45}\]"
_USER: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
_PATH: Final = r"[A-Za-z0-9_./~+@%,=:-]{1,400}"
_SHORT: Final = re.compile(rf"(?P<user>{_USER})@(?P<host>{_HOST}|{_IPV6}):(?P<path>(?![/-]){_PATH})")
"""``git@example.org:team/project.git``"""
_ADDRESS: Final = re.compile(
    rf"(?P<scheme>https|http|ssh)://(?:(?P<user>{_USER})@)?(?P<host>{_HOST}|{_IPV6})(?::(?P<port>[0-9]{{1,5}}))?"
    rf"/(?P<path>{_PATH})"
)
_LAST_PORT: Final = 65535


class BadAddress(ValueError):
    """An address that nothing is pushed to; its text says what to enter instead."""


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """The checked address of a repository on a server."""

    text: str
    """As it was entered; git gets it like that."""
    scheme: str
    """``https``, ``http`` or ``ssh``."""
    host: str
    """Without the brackets of an IPv6 address."""
    port: int | None
    user: str
    """Who logs in by ssh; empty for https."""

    @property
    def is_ssh(self) -> bool:
        """Whether a key logs in, rather than a token."""
        return self.scheme == "ssh"

    @property
    def known_host(self) -> str:
        """The name under which ssh looks up the host's key."""
        if self.port in (None, 22):
            return self.host
        return f"[{self.host}]:{self.port}"


def parse_address(text: str) -> RemoteAddress:
    """Return a checked address; raises BadAddress."""
    if len(text) > MAX_ADDRESS:
        raise BadAddress(f"The address is longer than {MAX_ADDRESS} characters.")
    if short := _SHORT.fullmatch(text):
        return RemoteAddress(text, "ssh", short["host"].strip("[]"), None, short["user"])
    if _has_password(text):
        raise BadAddress("The address contains a password or token. Enter it without, and enter the token below.")
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise BadAddress(
            "Enter an address like https://example.org/team/project.git or git@example.org:team/project.git."
        )
    port = None
    if found["port"]:
        port = int(found["port"])
    if port is not None and not 0 < port <= _LAST_PORT:
        raise BadAddress("The port is not valid.")
    return _checked(RemoteAddress(text, found["scheme"], found["host"].strip("[]"), port, found["user"] or ""))


def _checked(address: RemoteAddress) -> RemoteAddress:
    if address.is_ssh and not address.user:
        raise BadAddress("An address for ssh names its user, such as git@example.org.")
    if not address.is_ssh and address.user:
        raise BadAddress("Enter the address without a user name, and enter the user name below.")
    if address.scheme == "http" and not _is_this_machine(address.host):
        raise BadAddress("A token would be sent in clear text by http. Use https.")
    return address


def _is_this_machine(host: str) -> bool:
    """Whether what is sent to a host never leaves this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _has_password(text: str) -> bool:
    """Whether an address has a password, or the user name in it may be a token."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.password is not None or (parts.scheme in {"http", "https"} and parts.username is not None)
