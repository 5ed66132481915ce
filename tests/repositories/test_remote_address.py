"""Addresses that branches may be pushed to."""

from __future__ import annotations

import pytest

from executors_app.repositories.remote_address import BadAddress, parse_address


@pytest.mark.parametrize(
    ("text", "known_host", "is_ssh"),
    [
        ("https://example.org/team/project.git", "example.org", False),
        ("https://example.org:8443/project", "[example.org]:8443", False),
        ("http://127.0.0.1:80/project", "[127.0.0.1]:80", False),
        ("http://localhost/project", "localhost", False),
        ("git@example.org:team/project.git", "example.org", True),
        ("ssh://git@example.org/team/project.git", "example.org", True),
        ("ssh://git@example.org:2222/~/project.git", "[example.org]:2222", True),
        ("ssh://git@[::1]:2222/project.git", "[::1]:2222", True),
    ],
)
def test_addresses_of_servers_are_understood(text: str, known_host: str, is_ssh: bool) -> None:
    address = parse_address(text)
    assert (address.text, address.known_host, address.is_ssh) == (text, known_host, is_ssh)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "like"),
        ("/srv/project.git", "like"),
        ("file:///srv/project.git", "like"),
        ("ext::sh -c touch% /tmp/x", "like"),
        ("git://example.org/project.git", "like"),
        ("-oProxyCommand=x@example.org:project", "like"),
        ("git@-oProxyCommand=x:project", "like"),
        ("ssh://git@-oProxyCommand=x/project", "like"),
        ("git@example.org:-project", "like"),
        ("https://example.org/a b", "like"),
        ("https://example.org/a\nb", "like"),
        ("https://example.org/a?token=b", "like"),
        ("https://example.org:99999/a", "port"),
        ("https://user:secret@example.org/project.git", "password"),
        ("https://ghp_secret@example.org/project.git", "password"),
        ("ssh://git:secret@example.org/project.git", "password"),
        ("ssh://example.org/project.git", "names its user"),
        ("http://example.org/project.git", "https"),
        (f"https://example.org/{'a' * 500}", "longer"),
    ],
)
def test_everything_else_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(BadAddress, match=why) as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)
