"""The settings page for e-mail, browsers, devices and webhooks."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.views.settings import render_settings
from sessions_app.kernel.services.errors import NotFound, SessionsError
from sessions_app.notifications import push_devices, user_settings
from sessions_app.notifications.forms import (
    BrowserForm,
    DeviceForm,
    EmailForm,
    NewDeviceForm,
    ReplacedSubscriptionForm,
    WebhookForm,
)
from sessions_app.notifications.models import PushDevice
from sessions_app.pages.labels import DELIVERY_STATE_LABELS
from sessions_app.pages.shortcuts import form_status

MAX_DELIVERIES_SHOWN: Final = 15
"""Number of deliveries on the page."""
SETTINGS_PAGE: Final = "settings-notifications"


@never_cache
def edit_notification_settings(request: UserHttpRequest) -> HttpResponse:
    """Show e-mail settings, and change them on POST."""
    if request.method == "POST":
        form = EmailForm(request.user, request.POST)
    else:
        form = EmailForm.of(request.user, user_settings.get_settings(request.user))
    if request.method == "POST" and form.is_valid():
        try:
            user_settings.change_settings(request.user, form.cleaned_data)
        except SessionsError as error:
            form.add_error(None, error.message)
        else:
            messages.success(request, "Saved.")
            return redirect(SETTINGS_PAGE)
    return _render_notifications(request, form_status(form), form=form)


def _render_notifications(request: UserHttpRequest, status: int = 200, **more: Any) -> HttpResponse:
    user = request.user
    chosen = user_settings.get_settings(user)
    context = {
        "form": EmailForm.of(user, chosen),
        "browser_form": BrowserForm.of(user, chosen),
        "device_form": NewDeviceForm(user),
        "devices": [DeviceRow(device) for device in push_devices.list_devices(user).select_related("user")],
        "webhook_form": WebhookForm(user),
        "webhooks": user_settings.list_webhooks(user),
        "deliveries": [
            {"row": row, "label": DELIVERY_STATE_LABELS[row.state]}
            for row in user_settings.list_deliveries(user)[:MAX_DELIVERIES_SHOWN]
        ],
        "sends_mail": settings.KANDEV_EMAIL,
        **more,
    }
    return render_settings(request, "notifications/notifications.html", SETTINGS_PAGE, context, status)


@require_POST
def change_browser_notifications(request: UserHttpRequest) -> HttpResponse:
    """Choose of which kinds of items the user's browsers show notifications."""
    form = BrowserForm(request.user, request.POST, auto_id="browser-%s")
    if not form.is_valid():
        return _render_notifications(request, 422, browser_form=form)
    user_settings.change_browser_kinds(request.user, form.cleaned_data["browser_kinds"])
    messages.success(request, "Saved.")
    return redirect(SETTINGS_PAGE)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device in the list."""

    device: PushDevice

    @property
    def form(self) -> DeviceForm:
        """The form for its kinds."""
        return DeviceForm.of(self.device)

    @property
    def is_signed_in(self) -> bool:
        """Whether it gets anything."""
        return push_devices.gets_messages(self.device)


@never_cache
@require_POST
def add_device_from_form(request: UserHttpRequest) -> HttpResponse:
    """Push notifications to the browser that sends this form."""
    form = NewDeviceForm(request.user, request.POST)
    if form.is_valid():
        name = push_devices.device_name(request.headers.get("User-Agent", ""))
        sign_in = request.session.session_key or ""
        kinds = form.cleaned_data["kinds"]
        try:
            push_devices.add_device(request.user, form.subscription(), sign_in=sign_in, name=name, kinds=kinds)
        except SessionsError as error:
            form.add_error(None, error.message)
        else:
            messages.success(request, "This device will be notified. Send a test to see it.")
            return redirect(SETTINGS_PAGE)
    return _render_notifications(request, 422, device_form=form)


@never_cache
@require_POST
def give_push_key(request: UserHttpRequest) -> JsonResponse:
    """Return the public key with which a browser subscribes; a POST, because it may have to be made."""
    return JsonResponse({"key": push_devices.public_key()})


@require_POST
def renew_device_from_script(request: UserHttpRequest) -> HttpResponse:
    """Go on pushing to a known device after its user has signed in there again; any other is ignored."""
    push_devices.renew_device(request.user, request.session.session_key or "", str(request.POST.get("endpoint", "")))
    return HttpResponse(status=204)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def replace_subscription(request: UserHttpRequest) -> HttpResponse:
    """Push to a known browser's new subscription. A GET gives its service worker, which has no page, a CSRF token."""
    if request.method != "POST":
        return JsonResponse({"token": get_token(request)})
    form = ReplacedSubscriptionForm(request.POST)
    if not form.is_valid():
        return HttpResponse(status=422)
    sign_in = request.session.session_key or ""
    try:
        push_devices.replace_subscription(request.user, sign_in, form.cleaned_data["former"], form.subscription())
    except NotFound:
        return HttpResponse(status=404)
    except SessionsError:
        return HttpResponse(status=422)
    return HttpResponse(status=204)


@require_POST
def change_or_test_device(request: UserHttpRequest, device_id: uuid.UUID, what: str) -> HttpResponse:
    """Test a device, choose its kinds or remove it. Raise Http404 for another user's."""
    try:
        device = push_devices.find_device(request.user, device_id)
    except NotFound:
        raise Http404 from None
    match what:
        case "test":
            _run_test(request, lambda: user_settings.send_test_push(request.user, device))
        case "kinds":
            form = DeviceForm(request.user, request.POST)
            if form.is_valid():
                device.kinds = form.cleaned_data["kinds"]
                device.save(update_fields=["kinds"])
                messages.success(request, "Saved.")
            else:
                messages.error(request, "This is not one of the choices.")
        case "remove":
            device.delete()
            messages.success(request, "Device removed. It gets no more notifications.")
        case _:
            raise Http404(what)
    return redirect(SETTINGS_PAGE)


@require_POST
def send_test_email_now(request: UserHttpRequest) -> HttpResponse:
    """Send a test e-mail."""
    _run_test(request, lambda: user_settings.send_test_email(request.user))
    return redirect(SETTINGS_PAGE)


def _run_test(request: UserHttpRequest, send: Callable[[], object]) -> None:
    try:
        send()
        messages.success(request, "Test sent. The result appears under Recent deliveries on this page.")
    except SessionsError as error:
        messages.error(request, error.message)


@never_cache
@require_POST
def create_webhook_from_form(request: UserHttpRequest) -> HttpResponse:
    """Create a webhook; only this response shows its secret."""
    form = WebhookForm(request.user, request.POST)
    if form.is_valid():
        values = form.cleaned_data
        try:
            hook = user_settings.create_webhook(request.user, values["url"], values["kinds"], form.team())
        except SessionsError as error:
            form.add_error("url", error.message)
        else:
            return _render_notifications(request, 201, secret=hook.secret, webhook=hook)
    return _render_notifications(request, 422, webhook_form=form)


@never_cache
@require_POST
def change_or_test_webhook(request: UserHttpRequest, webhook_id: uuid.UUID, what: str) -> HttpResponse:
    """Test a webhook, switch it on or off, replace its secret or remove it. Raise Http404 for another user's."""
    try:
        hook = user_settings.find_webhook(request.user, webhook_id)
    except NotFound:
        raise Http404 from None
    match what:
        case "test":
            _run_test(request, lambda: user_settings.send_test_call(request.user, hook))
        case "switch":
            user_settings.change_webhook(request.user, hook, {"enabled": not hook.enabled})
        case "rotate":
            return _render_notifications(request, secret=user_settings.rotate_secret(hook), webhook=hook)
        case "remove":
            hook.delete()
            messages.success(request, "Webhook removed.")
        case _:
            raise Http404(what)
    return redirect(SETTINGS_PAGE)
