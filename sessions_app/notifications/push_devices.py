"""The browsers that a user's notifications are pushed to, and the key with which push services know this deployment."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from executors_app.encryption import SecretUnreadable
from sessions_app.accounts.sign_ins import is_signed_in
from sessions_app.attention.rules.notices import LOOK_KINDS
from sessions_app.kernel.services.errors import Conflict, Invalid, NotFound
from sessions_app.notifications import webhooks
from sessions_app.notifications.models import Delivery, PushDevice, PushKey
from sessions_app.notifications.web_push import (
    MAX_ENDPOINT_LENGTH,
    PushRequest,
    Receiver,
    encode,
    encode_public_key,
)

MAX_DEVICES: Final = 10
"""Maximum number of devices of one user."""
NAME_LENGTH: Final = 80
_BROWSERS: Final = {
    "Edg": "Edge",
    "OPR/": "Opera",
    "SamsungBrowser/": "Samsung Internet",
    "Firefox/": "Firefox",
    "FxiOS/": "Firefox",
    "Chrome/": "Chrome",
    "CriOS/": "Chrome",
    "Safari/": "Safari",
}
"""Names of browsers by what their ``User-Agent`` contains; the first one that fits is right."""
_SYSTEMS: Final = {
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Android": "Android",
    "Windows": "Windows",
    "CrOS": "ChromeOS",
    "Mac OS X": "Mac",
    "Linux": "Linux",
}
_NO_CONTACT: Final = "mailto:kandev@localhost"


def device_name(user_agent: str) -> str:
    """Return what people call the browser that sends this header, such as ``Firefox on Linux``."""
    browser = next((name for part, name in _BROWSERS.items() if part in user_agent), "A browser")
    system = next((name for part, name in _SYSTEMS.items() if part in user_agent), "")
    if system:
        return f"{browser} on {system}"
    return browser


def public_key() -> str:
    """Return the public key with which browsers subscribe now, in base64url. It is made when it is first needed."""
    for row in PushKey.objects.all():
        # Encrypted with a SECRET_KEY that is lost, or will come back; or damaged.
        with suppress(SecretUnreadable, ValueError, TypeError):
            _load_key(row)
            return str(row.public_key)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    row = PushKey.objects.create(public_key=encode(encode_public_key(key)), private_key=pem)
    return str(row.public_key)


def _load_key(row: PushKey) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(row.private_key.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(type(key).__name__)
    return key


def list_devices(user: User) -> QuerySet[PushDevice]:
    """Return the user's devices, the oldest first."""
    return PushDevice.objects.filter(user_id=user.pk)


def find_device(user: User, device_id: uuid.UUID) -> PushDevice:
    """Return one of the user's devices; raise NotFound for any other."""
    found = list_devices(user).filter(id=device_id).first()
    if found is None:
        raise NotFound("There is no such device.")
    return found


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a browser says of itself when it subscribes."""

    endpoint: str
    key: str
    auth: str
    signed_with: str
    """The public key of this deployment that it was given."""


def add_device(user: User, subscription: Subscription, *, sign_in: str, name: str, kinds: Sequence[str]) -> PushDevice:
    """Push items of these kinds to a browser from now on, while the user is signed in there by the session ``sign_in``.

    Raises Invalid for an address that is not a public one of https, and Conflict for too many devices.
    """
    values = {
        **_columns(subscription),
        "sign_in": sign_in,
        "name": name[:NAME_LENGTH],
        "kinds": list(kinds),
        "created_at": timezone.now(),  # what is older is not pushed
    }
    digest = endpoint_digest(subscription.endpoint)
    with transaction.atomic():
        if list_devices(user).exclude(endpoint_digest=digest).count() >= MAX_DEVICES:
            raise Conflict(f"There are already {MAX_DEVICES} devices. Remove one that is no longer used.")
        device, _ = PushDevice.objects.update_or_create(user_id=user.pk, endpoint_digest=digest, defaults=values)
    return device


def _columns(subscription: Subscription) -> dict[str, Any]:
    """Return what a device stores of a subscription. Raises Invalid for one that cannot be pushed to."""
    endpoint = subscription.endpoint
    signed_with = PushKey.objects.filter(public_key=subscription.signed_with).first()
    if signed_with is None:
        raise Invalid("Reload this page, and try again.")
    try:
        Receiver.parse(endpoint, subscription.key, subscription.auth)
        webhooks.check_address(endpoint, MAX_ENDPOINT_LENGTH)
    except ValueError as error:
        raise Invalid("This browser’s push service cannot be used: its address or its keys are not valid.") from error
    except OSError as error:
        raise Invalid("The name of this browser’s push service cannot be resolved.") from error
    return {
        "endpoint": endpoint,
        "service": (urlsplit(endpoint).hostname or "")[:255],
        "signed_with": signed_with,
        "key": subscription.key,
        "auth": subscription.auth,
    }


def replace_subscription(user: User, sign_in: str, former: str, subscription: Subscription) -> None:
    """Push to another subscription of a browser from now on, as its browser has ended the former one.

    The device keeps its name, its kinds and what was already pushed to it.

    Args:
        user: Its user; devices of others are not found.
        sign_in: The session of the request: the device's, if the browser does not know its former subscription.
        former: The endpoint of the former subscription; may be empty.
        subscription: The new one.

    Raises NotFound if it is no device of the user, and Invalid for a subscription that cannot be pushed to.
    """
    values = _columns(subscription)
    digest = endpoint_digest(subscription.endpoint)
    with transaction.atomic():
        devices = list(list_devices(user).select_for_update())
        device = _device_of_browser(devices, sign_in, former)
        if device is None:
            raise NotFound("There is no such device.")
        # The page and the service worker may both report the same change: the second finds it done.
        if any(each.endpoint_digest == digest for each in devices):
            return
        for name, value in {**values, "endpoint_digest": digest, "sign_in": sign_in}.items():
            setattr(device, name, value)
        device.save(update_fields=[*values, "endpoint_digest", "sign_in"])


def _device_of_browser(devices: Sequence[PushDevice], sign_in: str, former: str) -> PushDevice | None:
    digest = endpoint_digest(former)
    for device in devices:
        if device.endpoint_digest == digest:
            return device
    of_sign_in = [device for device in devices if _has_sign_in(device, sign_in)]
    if not of_sign_in:
        return None
    return of_sign_in[-1]


def _has_sign_in(device: PushDevice, sign_in: str) -> bool:
    try:
        return bool(sign_in) and device.sign_in == sign_in
    except SecretUnreadable:
        return False


def renew_device(user: User, sign_in: str, endpoint: str) -> bool:
    """Record that a known device of the user has signed in again; return False for any other."""
    device = list_devices(user).filter(endpoint_digest=endpoint_digest(endpoint)).first()
    if device is None:
        return False
    device.sign_in = sign_in
    device.save(update_fields=["sign_in"])
    return True


def endpoint_digest(endpoint: str) -> str:
    """Return what an endpoint is found by: it is stored encrypted."""
    return sha256(endpoint.encode()).hexdigest()


def gets_messages(device: PushDevice) -> bool:
    """Return whether the device's user is still signed in there."""
    try:
        return is_signed_in(device.user, device.sign_in)
    except SecretUnreadable:
        return False


def push_request(row: Delivery, contact: str) -> PushRequest:
    """Return the request that sends a delivery. Raises SecretUnreadable or ValueError if its device is damaged."""
    device = row.device
    assert device is not None  # noqa: S101 - a delivery without one is dropped
    receiver = Receiver.parse(device.endpoint, device.key, device.auth)
    if not contact.startswith("https://"):
        contact = _NO_CONTACT
    body = json.dumps(row.payload, ensure_ascii=False, separators=(",", ":")).encode()
    is_urgent = row.is_test or str(row.payload.get("kind", "")) not in LOOK_KINDS
    return PushRequest(receiver, body, _load_key(device.signed_with), contact, is_urgent=is_urgent)
