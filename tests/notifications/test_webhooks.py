"""A webhook calls only allowed addresses and signs its requests."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessions_app.notifications import webhooks
from sessions_app.notifications.webhook_address import InvalidWebhookAddress, is_public, parse_webhook_address
from sessions_app.notifications.webhooks import WebhookFailed, WebhookRequest, check_address, send_webhook
from tests.docker.certificates import SERVER, Authority
from tests.notifications.receiver import Receiver, is_genuine, receiving
from tests.waiting import PATIENCE

SECRET = "whsec_of_a_test"
ANY = ".".join("0000")


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    """Yield a receiver that the deployment allows."""
    with receiving() as found:
        settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = (found.authority,)
        yield found


def send(url: str) -> int:
    return send_webhook(WebhookRequest(url, SECRET, b'{"type":"ping"}', "delivery-1", "ping"))


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", ANY, "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "192.0.0.1", "198.18.0.1", "203.0.113.7", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
        *("192.0.0.9", "192.0.0.10", "192.0.0.170", "168.63.129.16", "192.88.99.1", "fec0::1", "feff::1", "3fff::1"),
        *("::ffff:168.63.129.16", "64:ff9b::a83f:8110", "2002:a83f:8110::", "::ffff:192.0.0.9", "64:ff9b:1::a00:1"),
        *("2001:470::5efe:a00:1", "2001:470::200:5efe:7f00:1", "::127.0.0.1", "4000::1", "100::1"),
        *("nonsense", ""),
    ],
)
def test_reserved_and_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "93.184.216.34", "168.63.129.17", "192.0.1.1"),
        *("2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"),
    ],
)
def test_internet_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://hooks.example/x",
            "ftp://hooks.example/",
            "https://",
            "https:///x",
            "hooks.example",
            "",
            "file:///etc",
        ),
        *("https://user@hooks.example/", "https://u:p@hooks.example/", "https://hooks.example/#part"),
        *("https://hooks.example:99999/", "https://hooks.example/a b", "https://hooks.example\\@127.0.0.1/"),
        *(
            "https://hooks.example/\r\nX: y",
            "https://hööks.example/",
            "https://[::1/",
            "https://hooks.example/" + "x" * 500,
        ),
    ],
)
def test_malformed_webhook_urls_are_rejected(url: str) -> None:
    with pytest.raises(InvalidWebhookAddress):
        parse_webhook_address(url)


@pytest.mark.parametrize(
    ("url", "allowed", "trusted", "authority"),
    [
        ("https://Hooks.Example./a?b=c", (), False, "hooks.example"),
        ("https://hooks.example:8443/", (), False, "hooks.example:8443"),
        ("http://build.internal/", ("build.internal",), True, "build.internal"),
        ("http://build.internal:8080/", ("build.internal:8080",), True, "build.internal:8080"),
        ("https://[::1]:8443/", ("[::1]:8443",), True, "[::1]:8443"),
        ("https://build.internal:8080/", ("build.internal:9090",), False, "build.internal:8080"),
    ],
)
def test_hosts_named_by_the_deployment_are_trusted(
    url: str, allowed: tuple[str, ...], trusted: bool, authority: str
) -> None:
    found = parse_webhook_address(url, allowed)
    assert (found.is_trusted, found.authority) == (trusted, authority)


@pytest.mark.parametrize(
    "url",
    [
        *("https://127.0.0.1/", "https://localhost/", "https://[::1]/", "https://169.254.169.254/latest/meta-data"),
        *("https://2130706433/", "https://0x7f.1/", "https://0177.0.0.1/", "https://0/"),
    ],
)
def test_local_addresses_are_refused_in_every_notation(url: str) -> None:
    with pytest.raises((InvalidWebhookAddress, OSError)):
        check_address(url)
    with pytest.raises(WebhookFailed):
        send(url)


def resolving_to(*addresses: str) -> Any:
    return lambda host, port, *args, **more: [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses
    ]


def test_name_with_any_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving_to("93.184.216.34", "10.0.0.1"))
    with pytest.raises(InvalidWebhookAddress):
        check_address("https://hooks.example/")


def test_dns_rebinding_is_caught_by_checking_the_address_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving_to("93.184.216.34"))
    check_address("https://hooks.example/")
    looked: list[str] = []

    def rebind(host: str, port: int, **more: Any) -> Any:
        looked.append(host)
        return resolving_to("127.0.0.1" if len(looked) == 1 else "93.184.216.34")(host, port)

    monkeypatch.setattr(socket, "getaddrinfo", rebind)
    with pytest.raises(WebhookFailed, match="private network"):
        send("https://hooks.example/")
    assert looked == ["hooks.example"]


def test_connection_is_made_to_the_checked_address(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver, settings: Any
) -> None:
    settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = ("hooks.example",)
    monkeypatch.setattr(socket, "getaddrinfo", resolving_to("127.0.0.1"))
    assert send(f"http://hooks.example:{receiver.port}/") == 204
    assert receiver.requests[0][0]["host"] == f"hooks.example:{receiver.port}"


@pytest.mark.parametrize(("shown", "arrives"), [("hooks.example", True), ("127.0.0.1", False)])
def test_tls_verifies_the_name_at_the_checked_address(
    shown: str, arrives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("receiver", SERVER, shown)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    monkeypatch.setattr(socket, "getaddrinfo", resolving_to("127.0.0.1"))
    settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = ("hooks.example",)
    with receiving(context) as receiver:
        if arrives:
            assert send(f"https://hooks.example:{receiver.port}/") == 204
            assert receiver.requests[0][0]["host"] == f"hooks.example:{receiver.port}"
        else:
            with pytest.raises(WebhookFailed, match="could not be reached"):
                send(f"https://hooks.example:{receiver.port}/")
    assert names == ["hooks.example"]


def test_request_is_signed_and_carries_its_delivery_id(receiver: Receiver) -> None:
    assert send(receiver.url) == 204
    ((headers, body),) = receiver.requests
    assert (body, headers[":path"], headers["content-type"]) == (b'{"type":"ping"}', "/hook?x=1", "application/json")
    assert (headers["x-kandev-delivery"], headers["x-kandev-event"]) == ("delivery-1", "ping")
    assert abs(int(headers["x-kandev-timestamp"]) - time.time()) < 30
    assert is_genuine(SECRET, headers, body)
    assert not is_genuine("another", headers, body)
    assert not is_genuine(SECRET, headers, body + b" ")
    assert not is_genuine(SECRET, {**headers, "x-kandev-timestamp": "1"}, body)


@pytest.mark.parametrize(("status", "permanent"), [(500, False), (404, False), (410, True), (302, False), (307, False)])
def test_error_and_redirect_responses_are_failures(receiver: Receiver, status: int, permanent: bool) -> None:
    receiver.status, receiver.headers = status, {"Location": receiver.url}
    with pytest.raises(WebhookFailed, match=f"answered {status}") as failed:
        send(receiver.url)
    assert (failed.value.permanent, len(receiver.requests)) == (permanent, 1)


def test_silent_server_times_out(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT", 0.3)
    receiver.hangs = threading.Event()
    with pytest.raises(WebhookFailed, match="could not be reached"):
        send(receiver.url)
    receiver.hangs.set()


def test_name_server_that_does_not_answer_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(webhooks, "CONNECT_TIMEOUT", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait(60) and [])
    with pytest.raises(WebhookFailed, match="cannot be resolved: no answer in time"):
        send("https://slow.example/")
    answers.set()


def test_server_that_sends_byte_by_byte_times_out(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, over = server.getsockname()[1], threading.Event()
        settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = (f"127.0.0.1:{port}",)

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(0.1)
                while not over.wait(0.05):
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        impatience = threading.Timer(PATIENCE, over.set)
        impatience.start()
        with pytest.raises(WebhookFailed):
            send(f"http://127.0.0.1:{port}/")
        assert not over.is_set()
        impatience.cancel()
        over.set()
        thread.join()


def test_server_without_a_valid_certificate_is_not_called(receiver: Receiver) -> None:
    with pytest.raises(WebhookFailed, match="could not be reached"):
        send(receiver.url.replace("http://", "https://"))


def test_error_message_contains_neither_response_nor_secret(receiver: Receiver) -> None:
    receiver.status, receiver.headers = 500, {"X-Inside": "confidential"}
    with pytest.raises(WebhookFailed) as failed:
        send(receiver.url)
    assert "confidential" not in str(failed.value) and SECRET not in str(failed.value)
