"""Notifications are pushed, encrypted, to browsers whose users are signed in there, and to public addresses alone."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from django.utils import timezone

from sessions_app.attention.services import inbox
from sessions_app.models import AttentionItem
from sessions_app.notifications import delivery as notifying
from sessions_app.notifications.models import Delivery, PushDevice, PushKey
from sessions_app.notifications.push_devices import MAX_DEVICES, device_name, public_key
from sessions_app.notifications.web_push import PADDED_BYTES, Receiver, encrypt
from tests.api.world import World
from tests.attention.raising import raise_item_of, resolve_items_of
from tests.notifications.push_service import FakeBrowser, endpoint_of, from_base64url, push_service, signed_claims
from tests.notifications.receiver import Receiver as Service

PAGE: Final = "/settings/notifications/devices/"
AGENT: Final = (
    "Mozilla/5.0 (Linux; Android 14) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Mobile Safari/537.36"
)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Service]:
    settings.KANDEV_SITE_URL = "https://kandev.example"
    with push_service(tmp_path, monkeypatch, settings) as found:
        yield found


@pytest.fixture
def client(world: World) -> Client:
    """Return a phone on which the member is signed in."""
    made = Client(headers={"User-Agent": AGENT})
    made.force_login(world.member)
    return made


@pytest.fixture
def browser() -> FakeBrowser:
    return FakeBrowser()


def subscribe(client: Client, browser: FakeBrowser, endpoint: str, *kinds: str) -> int:
    form = {**browser.subscription(endpoint), "signed_with": public_key(), "kinds": kinds or ("error", "permission")}
    return int(client.post(PAGE, form).status_code)


def states() -> list[str]:
    return sorted(Delivery.objects.values_list("state", flat=True))


def test_message_is_that_of_the_standard() -> None:
    number = int.from_bytes(from_base64url("q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"), "big")
    reader = FakeBrowser(
        ec.derive_private_key(number, ec.SECP256R1()), auth := from_base64url("BTBZMqHH6r4Tts7J_aSIgg")
    )
    key = from_base64url(reader.subscription("")["key"])
    sender = int.from_bytes(from_base64url("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"), "big")
    text = b"When I grow up, I want to be a watermelon"
    body = encrypt(
        text,
        Receiver("", key, auth),
        sender=ec.derive_private_key(sender, ec.SECP256R1()),
        salt=from_base64url("DGv6ra1nlYgDCS1FRnbzlw"),
    )
    expected = (
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3"
        "jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
    )
    assert body == from_base64url(expected)
    assert reader.decrypt(body) == text


def test_item_reaches_only_the_browser_that_subscribed(
    service: Service, client: Client, browser: FakeBrowser, world: World
) -> None:
    before = raise_item_of(world.session, "permission", "before")
    assert subscribe(client, browser, endpoint_of(service)) == 302
    device = PushDevice.objects.get()
    assert (device.name, device.service, device.kinds) == ("Chrome on Android", "127.0.0.1", ["error", "permission"])
    PushDevice.objects.update(created_at=timezone.now() - timedelta(minutes=1, seconds=30))
    item = raise_item_of(world.session, "permission", "p/1")
    type(before).objects.filter(id=before.id).update(created_at=timezone.now() - timedelta(minutes=5))
    raise_item_of(world.session, "held", "of another kind")
    for _ in range(2):
        notifying.run_notifications()
    ((headers, body),) = service.requests
    assert browser.read(body) == {
        "title": "What p/1",
        "body": "Mend the fence",
        "url": f"/tasks/{world.task.id}/sessions/{world.session.id}/requests/?request=p%2F1&next=%2Fattention%2F",
        "kind": "permission",
        "tag": str(item.id),
    }
    assert b"What" not in body
    names = ("content-encoding", "ttl", "urgency", ":path")
    assert [headers[name] for name in names] == ["aes128gcm", "86400", "high", "/send/one"]
    claims = signed_claims(headers, public_key())
    assert (claims["aud"], claims["sub"]) == (f"https://{service.authority}", "https://kandev.example/")
    assert time.time() < claims["exp"] < time.time() + 86_400
    assert states() == ["sent"]


def test_every_message_has_the_same_length(browser: FakeBrowser) -> None:
    fields = browser.subscription("https://push.example/")
    receiver = Receiver.parse(*fields.values())
    bodies = [encrypt(text, receiver, padded_to=PADDED_BYTES) for text in (b"", b"x" * 900, b"x" * 900)]
    assert len({len(body) for body in bodies}) == 1
    assert bodies[1] != bodies[2]
    assert [len(browser.decrypt(body)) for body in bodies] == [0, 900, 900]


def test_many_items_become_one_message(service: Service, client: Client, browser: FakeBrowser, world: World) -> None:
    subscribe(client, browser, endpoint_of(service))
    PushDevice.objects.update(created_at=timezone.now() - timedelta(hours=1))
    for number in range(5):
        raise_item_of(world.session, "error", str(number))
    notifying.run_notifications()
    ((_, body),) = service.requests
    told = browser.read(body)
    assert (told["title"], told["url"]) == ("5 items need your attention", "/attention/")


def test_only_a_request_that_is_raised_again_replaces_its_notification(world: World) -> None:
    item, other = raise_item_of(world.session, "error", "1"), raise_item_of(world.session, "error", "2")
    tags = [notifying.push_payload(items)["tag"] for items in ([item], [other], [item, other], [other, item])]
    assert len(set(tags)) == 4
    item.created_at += timedelta(minutes=5)
    item.save()
    assert notifying.push_payload([item])["tag"] == tags[0]


def replaced(former: str, browser: FakeBrowser, endpoint: str) -> dict[str, str]:
    """Return what a browser sends whose push service has given it another subscription."""
    return {**browser.subscription(endpoint), "former": former, "signed_with": public_key()}


@pytest.mark.parametrize("former", ["known", ""])
def test_new_subscription_of_a_browser_replaces_the_old_one_of_its_device(
    former: str, service: Service, client: Client, browser: FakeBrowser, world: World
) -> None:
    subscribe(client, browser, endpoint_of(service), "error")
    PushDevice.objects.update(created_at=timezone.now() - timedelta(hours=1))
    raise_item_of(world.session)
    notifying.run_notifications()
    device, another = PushDevice.objects.get(), FakeBrowser()
    former = endpoint_of(service) if former else ""
    for _ in range(2):  # the page and the service worker may both report it
        change = replaced(former, another, endpoint_of(service, "two"))
        assert client.post(f"{PAGE}replace/", change).status_code == 204
    kept = PushDevice.objects.get()
    assert (kept.pk, kept.name, kept.kinds) == (device.pk, device.name, device.kinds)
    client.post(f"{PAGE}{device.id}/test/")
    notifying.run_notifications()
    assert [headers[":path"] for headers, _ in service.requests] == ["/send/one", "/send/two"]
    assert another.read(service.requests[1][1])["tag"] == "test"


def test_subscription_of_another_user_or_browser_cannot_be_replaced(
    client: Client, browser: FakeBrowser, world: World
) -> None:
    endpoint, new = "https://93.184.216.34/one", "https://93.184.216.34/two"
    subscribe(client, browser, endpoint)
    stranger, elsewhere = Client(), Client()
    stranger.force_login(world.stranger)
    elsewhere.force_login(world.member)
    assert stranger.post(f"{PAGE}replace/", replaced(endpoint, browser, new)).status_code == 404
    assert elsewhere.post(f"{PAGE}replace/", replaced("", browser, new)).status_code == 404
    assert client.post(f"{PAGE}replace/", replaced(endpoint, browser, "https://127.0.0.1/")).status_code == 422
    assert PushDevice.objects.get().endpoint == endpoint


def test_replacing_a_subscription_needs_the_token_that_the_worker_gets(browser: FakeBrowser, world: World) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(world.member)
    token = strict.get(f"{PAGE}replace/").json()["token"]
    change = replaced("", browser, "https://93.184.216.34/two")
    assert strict.post(f"{PAGE}replace/", change).status_code == 403
    assert strict.post(f"{PAGE}replace/", change, headers={"X-CSRFToken": token}).status_code == 404


def test_refused_old_subscription_leaves_the_device_to_its_new_one(
    service: Service, client: Client, browser: FakeBrowser, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(client, browser, endpoint_of(service))
    PushDevice.objects.update(created_at=timezone.now() - timedelta(hours=1))
    raise_item_of(world.session)
    record = notifying._record_result

    def replaced_before_it_is_recorded(row: Delivery, error: BaseException | None) -> None:
        change = replaced(endpoint_of(service), browser, endpoint_of(service, "two"))
        assert client.post(f"{PAGE}replace/", change).status_code == 204
        record(row, error)

    service.status = 410
    with monkeypatch.context() as patched:
        patched.setattr(notifying, "_record_result", replaced_before_it_is_recorded)
        notifying.run_notifications()
    service.status = 201
    assert (states(), PushDevice.objects.count()) == (["pending"], 1)
    Delivery.objects.update(next_attempt_at=timezone.now())
    notifying.run_notifications()
    assert [headers[":path"] for headers, _ in service.requests] == ["/send/one", "/send/two"]


@pytest.mark.parametrize(
    "endpoint",
    [
        *("", "nonsense", "http://push.example/x", "https://127.0.0.1/x", "https://[::1]/x", "https://10.0.0.1/x"),
        *("https://169.254.169.254/latest/meta-data", "https://2130706433/", "https://localhost:1/x"),
        *("https://user:secret@93.184.216.34/x", "https://93.184.216.34/x#y", "https://93.184.216.34/" + "x" * 1000),
    ],
)
def test_hostile_endpoint_is_refused_with_a_reason(endpoint: str, client: Client, browser: FakeBrowser) -> None:
    form = {**browser.subscription(endpoint), "signed_with": public_key(), "kinds": ["error"]}
    answer = client.post(PAGE, form)
    assert answer.status_code == 422
    assert 'class="notice error"' in answer.text
    assert not PushDevice.objects.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("key", "BP4z9KsN"), ("key", "B" * 87), ("key", "*" * 87), ("auth", "AAAA"), ("auth", "")),
        *(("signed_with", "another"), ("kinds", "nonsense")),
    ],
)
def test_subscription_with_wrong_fields_is_refused(name: str, value: str, client: Client, browser: FakeBrowser) -> None:
    form = {**browser.subscription("https://93.184.216.34/x"), "signed_with": public_key(), "kinds": ["error"]}
    assert client.post(PAGE, {**form, name: value}).status_code == 422
    assert not PushDevice.objects.exists()


@pytest.mark.parametrize("change", ["the name leads into the private network", "plain http"])
def test_address_is_checked_again_when_it_is_called(
    change: str, service: Service, client: Client, browser: FakeBrowser, world: World, settings: Any
) -> None:
    subscribe(client, browser, endpoint_of(service))
    device = PushDevice.objects.get()
    if change == "plain http":
        device.endpoint = endpoint_of(service).replace("https://", "http://")
        device.save()
    else:
        settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = ()
    client.post(f"{PAGE}{device.id}/test/")
    notifying.run_notifications()
    assert (states(), service.requests) == (["failed"], [])


@pytest.mark.parametrize(
    ("status", "state", "devices"),
    [
        *((201, "sent", 1), (404, "failed", 0), (410, "failed", 0), (403, "failed", 1)),
        *((429, "pending", 1), (503, "pending", 1), (307, "pending", 1)),
    ],
)
def test_answer_of_the_push_service_decides_what_follows(
    status: int, state: str, devices: int, service: Service, client: Client, browser: FakeBrowser, world: World
) -> None:
    subscribe(client, browser, endpoint_of(service))
    PushDevice.objects.update(created_at=timezone.now() - timedelta(hours=1))
    raise_item_of(world.session)
    service.status, service.headers = status, {"Location": f"https://{service.authority}/elsewhere"}
    notifying.run_notifications()
    assert (states(), PushDevice.objects.count()) == ([state], devices)
    assert [headers[":path"] for headers, _ in service.requests] == ["/send/one"], "no redirect is followed"
    assert ("A removed device" in client.get("/settings/notifications/").text) == (devices == 0)


def _change_password(user: User) -> None:
    user.set_password("another")
    user.save()


def _device_page(what: str) -> str:
    return f"{PAGE}{PushDevice.objects.get().id}/{what}/"


ENDS: Final[Mapping[str, Callable[[Client, World], Any]]] = {
    "logged out": lambda client, world: client.post("/logout/"),
    "expired": lambda client, world: Session.objects.update(expire_date=timezone.now() - timedelta(seconds=1)),
    "password": lambda client, world: _change_password(world.member),
    "inactive": lambda client, world: User.objects.filter(pk=world.member.pk).update(is_active=False),
    "left": lambda client, world: world.member.groups.clear(),
    "removed": lambda client, world: client.post(_device_page("remove")),
    "settled": lambda client, world: resolve_items_of(world.session),
    "dismissed": lambda client, world: inbox.dismiss_item(AttentionItem.objects.get(), world.member),
}


@pytest.mark.parametrize("why", ENDS)
@pytest.mark.parametrize(("is_planned", "expected"), [(False, []), (True, ["dropped"])])
def test_nothing_is_pushed_any_more(
    why: str,
    is_planned: bool,
    expected: list[str],
    service: Service,
    client: Client,
    browser: FakeBrowser,
    world: World,
) -> None:
    subscribe(client, browser, endpoint_of(service))
    PushDevice.objects.update(created_at=timezone.now() - timedelta(hours=1))
    raise_item_of(world.session)
    if is_planned:
        assert notifying.plan_deliveries() == 1
    ENDS[why](client, world)
    notifying.run_notifications()
    assert (service.requests, states()) == ([], expected)


def test_message_that_a_process_of_an_older_release_dropped_is_pushed(
    service: Service, client: Client, browser: FakeBrowser, world: World
) -> None:
    subscribe(client, browser, endpoint_of(service))
    PushDevice.objects.update(created_at=timezone.now() - timedelta(hours=1))
    raise_item_of(world.session)
    assert notifying.plan_deliveries() == 1
    # 1.0.0 takes it for an e-mail to a user without an address.
    Delivery.objects.update(state="dropped", attempts=1, last_error="", finished_at=timezone.now())
    for _ in range(2):
        notifying.run_notifications()
    assert (len(service.requests), states()) == (1, ["sent"])


def test_kinds_of_a_device_can_be_changed(client: Client, browser: FakeBrowser, world: World) -> None:
    subscribe(client, browser, "https://93.184.216.34/x")
    client.post(_device_page("kinds"), {"kinds": ["permission"]})
    assert PushDevice.objects.get().kinds == ["permission"]
    client.post(_device_page("kinds"), {"kinds": ["nonsense"]})
    assert PushDevice.objects.get().kinds == ["permission"]
    other = Client()
    other.force_login(world.stranger)
    assert other.post(_device_page("kinds"), {"kinds": []}).status_code == 404


def test_device_goes_on_after_its_user_signed_in_there_again(
    service: Service, client: Client, browser: FakeBrowser, world: World
) -> None:
    endpoint = endpoint_of(service)
    subscribe(client, browser, endpoint)
    mark = client.get("/attention/count/").json()["sign_in"]
    assert client.get("/attention/count/").json()["sign_in"] == mark
    client.post("/logout/")
    other = Client()
    other.force_login(world.stranger)
    assert other.post(f"{PAGE}renew/", {"endpoint": endpoint}).status_code == 204
    client.force_login(world.member)
    assert client.get("/attention/count/").json()["sign_in"] != mark
    assert "Signed out" in client.get("/settings/notifications/").text
    assert client.post(f"{PAGE}renew/", {"endpoint": "https://another.example/"}).status_code == 204
    assert PushDevice.objects.count() == 1
    client.post(f"{PAGE}renew/", {"endpoint": endpoint})
    assert "Signed out" not in client.get("/settings/notifications/").text
    device = PushDevice.objects.get()
    assert (device.user, device.kinds) == (world.member, ["error", "permission"])
    client.post(f"{PAGE}{device.id}/test/")
    notifying.run_notifications()
    assert browser.read(service.requests[0][1])["title"] == "Kandev can reach this device"


def test_devices_of_a_user_are_bounded_and_a_browser_has_one(
    client: Client, browser: FakeBrowser, settings: Any, world: World
) -> None:
    address = "https://93.184.216.34"
    for number in range(MAX_DEVICES):
        assert subscribe(client, browser, f"{address}/{number}") == 302
    assert subscribe(client, browser, f"{address}/too-many") == 422
    assert subscribe(client, browser, f"{address}/0", "held") == 302
    assert PushDevice.objects.count() == MAX_DEVICES
    assert PushDevice.objects.filter(kinds=["held"]).count() == 1


def test_secrets_of_devices_and_of_the_key_are_nowhere_in_clear(
    client: Client, browser: FakeBrowser, caplog: pytest.LogCaptureFixture, service: Service
) -> None:
    caplog.set_level(logging.DEBUG)
    subscribe(client, browser, endpoint_of(service, "capability"))
    device, key = PushDevice.objects.get(), PushKey.objects.get()
    service.status = 500
    client.post(f"{PAGE}{device.id}/test/")
    notifying.run_notifications()
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM push_devices")
        stored = repr(cursor.fetchall())
        cursor.execute("SELECT * FROM push_keys")
        stored += repr(cursor.fetchall())
    shown = client.get("/settings/notifications/").text
    session = client.cookies[django_settings.SESSION_COOKIE_NAME].value
    lines = [line for line in key.private_key.splitlines() if not line.startswith("-")]
    for secret in ("capability", device.auth, session, *lines):
        assert not any(secret in place for place in (stored, shown, caplog.text)), secret


def test_deployment_has_one_key_which_it_makes_itself(client: Client) -> None:
    keys = [client.post(f"{PAGE}key/").json()["key"] for _ in range(2)]
    assert keys == [PushKey.objects.get().public_key] * 2


def test_lost_secret_key_leaves_devices_alone_and_makes_another_key(
    service: Service, client: Client, browser: FakeBrowser, settings: Any
) -> None:
    subscribe(client, browser, endpoint_of(service))
    first, kept = public_key(), settings.SECRET_KEY
    settings.SECRET_KEY = "another key of at least fifty characters, for tests alone"
    second = public_key()
    assert second != first == PushDevice.objects.get().signed_with_id
    assert public_key() == second
    assert notifying.plan_deliveries() == 0
    settings.SECRET_KEY = kept
    client.post(f"{PAGE}{PushDevice.objects.get().id}/test/")
    notifying.run_notifications()
    assert signed_claims(service.requests[0][0], first)


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        (AGENT, "Chrome on Android"),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox on Linux"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Mobile Safari/604.1", "Safari on iPhone"),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("<script>", "A browser"),
        ("", "A browser"),
    ],
)
def test_device_has_the_name_that_people_use(user_agent: str, name: str) -> None:
    assert device_name(user_agent) == name


def test_page_offers_the_kinds_that_need_an_action(client: Client) -> None:
    html = client.get("/settings/notifications/").text
    assert not PushKey.objects.exists(), "it is made for the first browser that subscribes"
    form = html[html.index('id="new-device"') :]
    checked = re.findall(r'value="(\w+)"[^>]*checked', form[: form.index("</form>")])
    assert "permission" in checked
    assert "idle" not in checked
