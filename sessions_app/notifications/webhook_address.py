"""Check the URLs of webhooks: their form, and that they lead to public addresses (against SSRF)."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

MAX_URL_LENGTH: Final = 500
_PORTS: Final = {"https": 443, "http": 80}
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""The range of public IPv6 addresses; others are refused."""
_SPECIAL_NETWORKS: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.0.0.0/24",  # reserved for IETF protocols; partly global for ``ipaddress``
            "168.63.129.16/32",  # Azure's service for virtual machines, which gives out their certificates
            "192.88.99.0/24",  # 6to4 relays
            "fec0::/10",  # site-local: deprecated, but still routed within some networks
            "3fff::/20",  # documentation
        ),
    )
)
"""Networks that some versions of ``ipaddress`` consider global, but that are refused here."""
_ISATAP: Final = {0x00005EFE, 0x02005EFE}
"""Bits 64 to 96 of an IPv6 address whose last 32 bits are the IPv4 address it leads to."""


class InvalidWebhookAddress(ValueError):
    """The URL is refused; the message is for people."""


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    """The parsed URL of a webhook."""

    scheme: str
    host: str
    """In lower case, without the brackets of an IPv6 literal."""
    port: int
    target: str
    """Path and query."""
    is_trusted: bool
    """Whether its host is in KANDEV_WEBHOOK_ALLOWED_HOSTS, which allows private addresses and plain http."""

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header."""
        host = self.host
        if ":" in host:
            host = f"[{host}]"
        if self.port == _PORTS[self.scheme]:
            return host
        return f"{host}:{self.port}"


def parse_webhook_address(
    url: str, allowed: Collection[str] = (), *, max_length: int = MAX_URL_LENGTH
) -> WebhookAddress:
    """Parse a URL. Raise InvalidWebhookAddress for a URL that webhooks may not use.

    ``allowed`` are the hosts, as ``host`` or ``host:port``, that the deployment trusts.
    """
    if len(url) > max_length or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise InvalidWebhookAddress(
            f"A URL can have at most {max_length} ASCII characters. Write other letters as punycode."
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidWebhookAddress("This is not a valid URL.") from error
    host = (parts.hostname or "").rstrip(".").lower()
    if parts.scheme not in _PORTS or not host:
        raise InvalidWebhookAddress("A URL must begin with https:// and a host name.")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidWebhookAddress("A URL must not contain a user, a password or a fragment.")
    if port is None:
        port = _PORTS[parts.scheme]
    trusted = host in allowed or f"{host}:{port}" in allowed or f"[{host}]:{port}" in allowed
    if parts.scheme == "http" and not trusted:
        raise InvalidWebhookAddress("Use https. Other URLs are allowed only for hosts in KANDEV_WEBHOOK_ALLOWED_HOSTS.")
    target = parts.path or "/"
    if parts.query:
        target += f"?{parts.query}"
    return WebhookAddress(parts.scheme, host, port, target, trusted)


def is_public(address: str) -> bool:
    """Return whether an IP address is public: not loopback, private, link-local, metadata or special."""
    try:
        found = ipaddress.ip_address(address.split("%", maxsplit=1)[0])
    except ValueError:
        return False
    inner = _embedded_ipv4(found)
    if inner is not None:
        return is_public(str(inner))
    if (found.version == 6 and found not in _UNICAST) or any(found in network for network in _SPECIAL_NETWORKS):
        return False
    return found.is_global and not found.is_multicast and not found.is_reserved and not found.is_unspecified


def _embedded_ipv4(found: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to, or None."""
    if isinstance(found, ipaddress.IPv4Address):
        return None
    if found.ipv4_mapped is not None:
        return found.ipv4_mapped
    if found.sixtofour is not None:
        return found.sixtofour
    if found.teredo is not None:
        return found.teredo[1]
    if found in _NAT64 or (int(found) >> 32) & 0xFFFFFFFF in _ISATAP:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return None
