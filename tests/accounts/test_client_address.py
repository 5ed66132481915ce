"""One parser reads every address of a client, and texts that it cannot read share one limit."""

from __future__ import annotations

import pytest

from sessions_app.accounts.client_address import network_of_address, parse_client_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("203.0.113.9:40001", "203.0.113.9"),
        ('"203.0.113.9:40001"', "203.0.113.9"),
        (" 203.0.113.9 ", "203.0.113.9"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:40001", "2001:db8::1"),
        ('"[2001:db8::1]:40001"', "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("[fe80::1%eth0]:40001", "fe80::1"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("[::ffff:203.0.113.9]:40001", "203.0.113.9"),
        ("", None),
        ("unknown", None),
        ("_hidden", None),
        ("203.0.113.9:port", None),
        ("203.0.113.9:400001", None),
        ("[2001:db8::1", None),
        ("203.0.113.256", None),
        ("for=203.0.113.9", None),
    ],
)
def test_addresses_are_read_with_and_without_ports(text: str, expected: str | None) -> None:
    address = parse_client_address(text)
    assert (None if address is None else str(address)) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("203.0.113.9:40001", "203.0.113.9:40002"),
        ("[2001:db8::1]:40001", "2001:db8::2"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("unknown", "_another"),
    ],
    ids=["ports", "one IPv6 network", "mapped", "no address"],
)
def test_connections_of_one_caller_count_together(one: str, other: str) -> None:
    assert network_of_address(one) == network_of_address(other)
