"""A phone is told of a request by a push message, and its user allows it with the second tap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import CDPSession, Page, expect

from sessions_app.models import AttentionItem
from sessions_app.notifications import delivery as notifying
from sessions_app.notifications.models import Delivery, PushDevice
from sessions_app.notifications.push_devices import public_key
from tests.attention.raising import backdate
from tests.notifications.push_service import FakeBrowser, endpoint_of, push_service
from tests.notifications.receiver import Receiver
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, PATIENCE, navigating, wait_until
from tests.pages.fixtures import browser, quick_password_hashes, visit, world  # noqa: F401
from tests.pages.world import World, asks, ingest_lines
from tests.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PHONE: Final = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "color_scheme": "dark",
    "permissions": ["notifications"],
}
SUBSCRIBE: Final = """
const made = (registration) => ({ endpoint: fields.endpoint, unsubscribe: async () => true,
  toJSON: () => ({ endpoint: fields.endpoint, keys: { p256dh: fields.key, auth: fields.auth } }) });
PushManager.prototype.subscribe = async (options) => {
  if (new Uint8Array(options.applicationServerKey).length !== 65) throw new DOMException("key", "InvalidAccessError");
  localStorage.setItem("test-subscribed", "yes");
  return made();
};
PushManager.prototype.getSubscription = async () => (localStorage.getItem("test-subscribed") ? made() : null);
"""
"""What Chromium does with the push service of its maker, which tests cannot reach."""
SHOWN: Final = """async () => {
  const registration = await navigator.serviceWorker.getRegistration("/static/kandev/");
  const shown = await registration.getNotifications();
  return shown.map(({ title, body, data }) => ({ title, body, url: data.url }));
}"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Receiver]:
    with push_service(tmp_path, monkeypatch, settings) as found:
        yield found


class PushedMessages:
    """Hands what the push service has received to the service worker of a page, as Chromium would."""

    def __init__(self, page: Page):
        self._page = page
        self._cdp: CDPSession = page.context.new_cdp_session(page)
        self._registrations: list[str] = []
        self._cdp.on("ServiceWorker.workerRegistrationUpdated", self._note)
        self._cdp.send("ServiceWorker.enable")

    def _note(self, event: dict[str, Any]) -> None:
        self._registrations += [one["registrationId"] for one in event["registrations"] if not one["isDeleted"]]

    def _wait_for_registration(self) -> None:
        for _ in range(PATIENCE // 20):
            if self._registrations:
                return
            self._page.wait_for_timeout(20)  # in which Playwright receives events
        raise TimeoutError

    def deliver(self, message: dict[str, Any]) -> dict[str, Any]:
        """Deliver a message; return the notification that the browser shows."""
        self._wait_for_registration()
        origin = "/".join(self._page.url.split("/")[:3])
        values = {"origin": origin, "registrationId": self._registrations[-1], "data": json.dumps(message)}
        self._cdp.send("ServiceWorker.deliverPushMessage", values)
        is_shown = f"({SHOWN})().then((shown) => shown.some(({{ title }}) => title === {json.dumps(message['title'])}))"
        wait_until(self._page, is_shown)
        shown = self._page.evaluate(SHOWN)
        found: dict[str, Any] = next(one for one in shown if one["title"] == message["title"])
        return found


REPLACE: Final = """async ([former, fields, key]) => {
  const bytes = Uint8Array.from(atob(key.replace(/-/g, "+").replace(/_/g, "/")), (one) => one.charCodeAt(0));
  const options = { applicationServerKey: bytes.buffer };
  PushManager.prototype.getSubscription = async () => null;
  PushManager.prototype.subscribe = async () => ({
    options,
    toJSON: () => ({ endpoint: fields.endpoint, keys: { p256dh: fields.key, auth: fields.auth } }),
  });
  const event = new ExtendableEvent("pushsubscriptionchange");
  event.oldSubscription = former ? { endpoint: former, options } : null;
  const done = new Promise((resolve, reject) => {
    event.waitUntil = (work) => work.then(resolve, reject);
  });
  self.dispatchEvent(event);
  await done;
}"""
"""What Chromium does in the service worker once a subscription has ended."""


def test_phone_goes_on_after_its_push_service_ended_a_subscription(
    visit: Any,  # noqa: F811
    service: Receiver,
) -> None:
    fake, newer = FakeBrowser(), FakeBrowser()
    phone = visit(**PHONE)
    phone.context.add_init_script(f"const fields = {json.dumps(fake.subscription(endpoint_of(service)))};{SUBSCRIBE}")
    page = phone.open("/settings/notifications/")
    with navigating(page):
        page.get_by_role("button", name="Notify this device").tap()
    expect(page.get_by_text("This device will be notified.")).to_be_visible()
    worker = page.context.service_workers[0]
    for number, former in enumerate((endpoint_of(service), ""), 1):  # some browsers do not tell the former one
        fields = newer.subscription(endpoint_of(service, f"newer-{number}"))
        worker.evaluate(REPLACE, [former, fields, public_key()])
        assert PushDevice.objects.get().endpoint == fields["endpoint"]
    assert phone.unexpected(*NO_SOCKET) == []


def test_phone_is_notified_and_allows_with_the_second_tap(visit: Any, service: Receiver, world: World) -> None:  # noqa: F811
    session = world.running_session()
    fake = FakeBrowser()
    phone = visit(**PHONE)
    phone.context.add_init_script(f"const fields = {json.dumps(fake.subscription(endpoint_of(service)))};{SUBSCRIBE}")
    page = phone.open("/settings/notifications/")
    expect(page.get_by_text("No device yet")).to_be_visible()
    with navigating(page):
        page.get_by_role("button", name="Notify this device").tap()
    expect(page.get_by_text("This device will be notified.")).to_be_visible()
    expect(page.get_by_text("This device", exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert accessibility_problems(page) == []
    pushed = PushedMessages(page)

    with navigating(page):
        page.get_by_role("button", name="Send a test").tap()
    expect(page.get_by_text("Test sent.")).to_be_visible()
    notifying.run_notifications()
    assert pushed.deliver(fake.read(service.requests[-1][1]))["title"] == "Kandev can reach this device"

    ingest_lines(session, asks("p1", tool_kind="execute", raw_input={"command": "make deploy"}))
    backdate(AttentionItem.objects.get(), 60)
    PushDevice.objects.update(created_at=AttentionItem.objects.get().created_at)
    notifying.run_notifications()
    notification = pushed.deliver(fake.read(service.requests[-1][1]))
    assert notification["body"] == "Fix the tests"
    page.goto(notification["url"])  # the first tap, on the notification
    expect(page.locator("pre.command")).to_contain_text("make deploy")
    with navigating(page):
        page.get_by_role("button", name="Allow once").tap()  # the second one
    assert session.intents.get(kind="answer").payload["option_id"] == "allow"

    page.goto("/settings/notifications/")
    with navigating(page):
        page.get_by_role("button", name="Remove").tap()
    expect(page.get_by_text("No device yet")).to_be_visible()
    eventually(lambda: not PushDevice.objects.exists())
    assert set(Delivery.objects.values_list("channel", "state")) == {("push", "sent")}
    assert phone.unexpected(*NO_SOCKET) == []
