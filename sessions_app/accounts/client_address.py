"""Parse the address of a client: the only parser of addresses that a socket or a proxy reports."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

ClientAddress = IPv4Address | IPv6Address

_WITH_PORT: Final = re.compile(r"\[(?P<bracketed>[^\[\]]+)\](?::\d{1,5})?|(?P<plain>[^:]+):\d{1,5}")
"""``[2001:db8::1]``, ``[2001:db8::1]:443`` and ``203.0.113.9:40001``; an IPv6 address without brackets has no port."""


def parse_client_address(text: str) -> ClientAddress | None:
    """Return the address in a text, or None if there is none.

    Proxies write an address alone or with a port, IPv6 addresses with or without brackets, and sometimes in quotation
    marks. The port differs between connections of one client, so it is dropped, and so is the zone of an IPv6 address.
    An IPv4 address that is mapped into IPv6 is returned as IPv4.
    """
    text = text.strip().strip('"')
    if match := _WITH_PORT.fullmatch(text):
        text = match["bracketed"] or match["plain"]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def network_of_address(address: str) -> str:
    """Return the network that counts as one caller: an IPv4 address, or an IPv6 /64, which one customer controls.

    It is empty for every text that is no address, as over a Unix socket: such callers share their limits.
    """
    found = parse_client_address(address)
    if found is None:
        return ""
    if found.version == 4:
        return str(found)
    return str(ip_network((found, 64), strict=False))
