"""Plan deliveries of what is new, render e-mails and payloads, and send them until they arrive."""

from __future__ import annotations

import json
import logging
import random
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import User
from django.core.mail import EmailMessage
from django.db import OperationalError, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Window
from django.db.models.functions import RowNumber
from django.utils import timezone
from django_q.tasks import async_task

from sessions_app.accounts.authorization import may_manage
from sessions_app.attention.services.inbox import open_items_for, own_items, team_items, unseen_items_for, visible_items
from sessions_app.attention.services.wording import word_items
from sessions_app.kernel.rules.states import ENDED_STATES, DesiredState
from sessions_app.models import AttentionItem, TaskSession
from sessions_app.notifications import webhooks
from sessions_app.notifications.models import DeliveredItem, Delivery, NotificationSettings, PushDevice, Webhook
from sessions_app.notifications.push_devices import gets_messages, push_request
from sessions_app.notifications.round_lock import round_lock
from sessions_app.notifications.web_push import DeviceGone, PushRequest, send_push
from sessions_app.redaction.visible_text import make_visible
from sessions_app.waits.reader import waits_of_items, waits_without_item
from sessions_app.waits.rules.open_waits import OpenWaitRecord

EMAIL_FOOTER = "You get this e-mail because you enabled notifications. To change this, go to {link}"
LINK_FALLBACK = "your notification settings"


def render_email(items: Sequence[AttentionItem]) -> dict[str, str]:
    """Return subject and text of one e-mail about all these items."""
    word_items(items)
    waits = waits_of_items(items)
    if len(items) == 1:
        subject = f"{items[0].what}: {items[0].title}"
    else:
        subject = f"{len(items)} items need your attention"
        count = len({item.group_key for item in items})
        if count > 1 and all(item.task_id for item in items):
            subject += f" in {count} tasks"
        elif count > 1:
            subject += f" in {count} tasks and workflows"
    parts = [_render_item(item, waits.get(item.key)) for item in items]
    parts.append(EMAIL_FOOTER.format(link=absolute_url("/settings/notifications/") or LINK_FALLBACK))
    return _message(f"[Kandev] {subject}", "\n\n".join(parts) + "\n")


def _message(subject: str, text: str) -> dict[str, str]:
    """Return subject and text of an e-mail in which no stored text can hide or reorder anything."""
    return {"subject": make_visible(_one_line(subject)), "text": make_visible(text)}


def render_test_email() -> dict[str, str]:
    """Return subject and text of a test e-mail."""
    text = f"E-mail from Kandev works. You will get an e-mail when an agent needs you.\n\n{EMAIL_FOOTER}\n"
    where = absolute_url("/settings/notifications/") or LINK_FALLBACK
    return {"subject": "[Kandev] Test message", "text": text.format(link=where)}


def _render_wait(wait: OpenWaitRecord) -> str:
    return f"- {_one_line(wait.task_title)}: {_one_line(wait.reason)} ({wait.sentence})"


def _render_item(item: AttentionItem, wait: OpenWaitRecord | None) -> str:
    lines = [item.what]
    if item.subject:
        lines.append(f"{item.subject}: {_one_line(item.title)} (team {item.team_name})")
    lines += [f"Why: {item.why}", f"Next: {item.next_step}"]
    if wait is not None:
        lines.append(f"Wait: {wait.sentence}. {wait.wake_up}")
    url = absolute_url(item.path)
    if url:
        lines.append(url)
    return "\n".join(lines)


def webhook_payload(item: AttentionItem, delivery_id: str, wait: OpenWaitRecord | None = None) -> dict[str, Any]:
    """Return the body of a webhook request about one item, and about the open ``wait`` that it is about, if it is.

    ``session_id`` and ``task`` are null if the item is about a workflow. All three are null and the team is empty if it
    is about the deployment.
    """
    word_items([item])
    session_id = task = workflow = None
    if item.session_id is not None:
        session_id = str(item.session_id)
    if item.task is not None:
        task = {"id": str(item.task.id), "title": item.task.title}
    if item.workflow is not None:
        workflow = {"id": str(item.workflow.id), "name": item.workflow.name}
    return {
        "type": "attention.raised",
        "delivery_id": delivery_id,
        "item": {
            "id": str(item.id),
            "key": item.key,
            "kind": item.kind,
            # Sentences for people, which many receivers show in a chat; names and ids are data and stay as they are.
            "what": make_visible(item.what),
            "why": make_visible(item.why),
            "next_step": make_visible(item.next_step),
            "created_at": item.created_at.isoformat(),
            "url": absolute_url(item.path) or item.path,
        },
        "wait": _wait_data(wait),
        "session_id": session_id,
        "task": task,
        "workflow": workflow,
        "team": item.team_name,
    }


def _wait_data(wait: OpenWaitRecord | None) -> dict[str, Any] | None:
    if wait is None:
        return None
    return {
        "kind": wait.kind,
        "id": wait.id,
        "since": wait.since.isoformat(),
        "deadline": wait.deadline.isoformat() if wait.deadline else None,
        "owner": str(wait.actor),
        "owner_name": wait.actor_name,
        "wake_up": wait.wake_up,
    }


def push_payload(items: Sequence[AttentionItem]) -> dict[str, Any]:
    """Return what a browser shows of these items: of one its sentence, task and link, of several only their number."""
    word_items(items)
    if len(items) > 1:
        title = f"{len(items)} items need your attention"
        # A browser replaces a notification by the next one with its tag: each group has one of its own.
        return {"title": title, "body": "", "url": "/attention/", "tag": f"items {items[0].id}"}
    (item,) = items
    return {
        "title": make_visible(_one_line(item.what))[:MAX_PUSH_CHARS],
        "body": make_visible(_one_line(item.title))[:MAX_PUSH_CHARS],
        "url": item.answer_path or item.path,
        "kind": item.kind,
        "tag": str(item.id),
    }


def render_test_push() -> dict[str, Any]:
    """Return what a browser shows as a test."""
    return {
        "title": "Kandev can reach this device",
        "body": "You will be notified here when an agent needs you.",
        "url": "/settings/notifications/",
        "tag": "test",
    }


def absolute_url(path: str) -> str:
    """Return the absolute URL of a path; empty if the site's URL is not configured."""
    base = settings.KANDEV_SITE_URL or next(iter(settings.CSRF_TRUSTED_ORIGINS), "")
    if base:
        return f"{base.rstrip('/')}{path}"
    return ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


log = logging.getLogger(__name__)
PLAN_DELAY: Final = timedelta(seconds=20)
"""Items that are resolved sooner are not sent."""
MAX_DELIVERY_AGE: Final = timedelta(days=1)
"""Older items are not sent, for example when someone enables notifications."""
MOST_ATTEMPTS: Final = 8
FIRST_RETRY_DELAY: Final = timedelta(seconds=30)
MAX_RETRY_DELAY: Final = timedelta(hours=1)
CLAIM_TIMEOUT: Final = timedelta(minutes=5)
"""After this time an attempt whose result is unknown is repeated: its worker may have died."""
MAX_CONCURRENT_DELIVERIES: Final = 100
"""Maximum number of items in one e-mail, and of deliveries in one round."""
MAX_PUSHES: Final = 3
"""Maximum number of messages that a round plans for a device; more items become one message with their number."""
MAX_PUSH_CHARS: Final = 200
"""Characters of title and text of a push message."""
MAX_OTHER_WAITS: Final = 10
"""Maximum number of waits that an e-mail names although they need nobody."""
MAX_ROUND_SECONDS: Final = 30.0
"""Seconds after which a round starts no other delivery, so that it ends before the next one begins."""
MAX_CALLS: Final = 16
"""Receivers that a round calls at the same time."""
MAX_CALLS_PER_TEAM: Final = 8
"""Receivers of one team and its members that a round calls at the same time."""
TEST_INTERVAL: Final = 0.5
"""Seconds between two looks of a round for tests that were requested meanwhile."""
ROUND_TASK: Final = "sessions_app.tasks.notifications.notify"
RETENTION: Final = timedelta(days=30)


def run_notifications() -> dict[str, int]:
    """Run one round: plan new deliveries, send those that are due and delete old ones; return the number of each.

    Do nothing while another worker of this machine runs a round: receivers, whose owners decide how long a call takes,
    never occupy more than one worker.
    """
    with round_lock() as is_held:
        if not is_held:
            return {"planned": 0, "given": 0, "forgotten": 0}
        planned = plan_deliveries()
        _restore_dropped_pushes()
        result = {"planned": planned, "given": send_due_deliveries(), "forgotten": delete_old_deliveries()}
    # Checked after the lock is released. A test that is requested earlier is found here, and a later one gets the lock.
    if _due_tests().exists():
        async_task(ROUND_TASK)  # queued, not repeated here: the jobs of others come first
    return result


def plan_deliveries() -> int:
    """Create deliveries for all items that receivers have enabled and that were not sent; return their number."""
    people = NotificationSettings.objects.filter(email=True, user__is_active=True).select_related("user")
    made = [_plan_or_log(partial(_plan_email, choice), choice) for choice in people if choice.is_due()]
    hooks = Webhook.objects.filter(enabled=True).filter(Q(user=None) | Q(user__is_active=True))
    made += [
        _plan_or_log(partial(_plan_webhook, hook), hook)
        for hook in hooks.select_related("user", "team", "created_by")
        if _may_still_notify_team(hook)
    ]
    devices = PushDevice.objects.filter(user__is_active=True).select_related("user")
    made += [_plan_or_log(partial(_plan_push, device), device) for device in devices if gets_messages(device)]
    return sum(made)


def _plan_or_log(plan: Callable[[], int], receiver: NotificationSettings | Webhook | PushDevice) -> int:
    """Plan what is due for one receiver. If that fails, the others still get theirs."""
    try:
        return plan()
    except OperationalError:
        raise  # the database is not reachable
    except Exception:
        log.exception("what %s %s should get cannot be written", type(receiver).__name__, receiver.pk)
        return 0


def _may_still_notify_team(hook: Webhook) -> bool:
    """Return whether the creator of a team's webhook still manages the team; otherwise disable it.

    The requests go to a URL of that person's choice. A user's own webhook gets only what the user may see now.
    """
    if hook.team is None or (hook.created_by is not None and may_manage(hook.created_by, hook.team)):
        return True
    Webhook.objects.filter(id=hook.id).update(enabled=False)
    log.warning("webhook %s was disabled: its creator no longer manages the team", hook.id)
    return False


def _plan_email(choice: NotificationSettings) -> int:
    user = choice.user
    rows = _undelivered_items(unseen_items_for(user), f"user:{user.pk}", choice.kinds)
    if choice.only_mine:
        rows = rows.filter(own_items(user))
    items = list(rows[:MAX_CONCURRENT_DELIVERIES])
    if not items or not user.email or not _has_enough_items(choice):
        return 0
    now, payload = timezone.now(), render_email(items)
    # Time of the last e-mail, delivery and its items commit together. After a crash before the commit, the next round
    # plans the same items again; after it, they are assigned and no other e-mail contains them.
    with transaction.atomic():
        unchanged = NotificationSettings.objects.filter(pk=choice.pk, last_email_at=choice.last_email_at)
        if not unchanged.update(last_email_at=now):
            return 0  # another worker has just planned an e-mail to this user
        delivery = Delivery.objects.create(channel="email", user=user, payload=payload)
        _add_delivered_items(delivery, items, f"user:{user.pk}")
    return 1


def _has_enough_items(choice: NotificationSettings) -> bool:
    """Return whether enough of the user's agents are waiting (``minimum_share``)."""
    if not choice.minimum_share:
        return True
    running = TaskSession.objects.visible_to(choice.user).filter(desired_state=DesiredState.RUNNING)
    running = running.exclude(state__in=ENDED_STATES)
    if choice.only_mine:
        running = running.filter(owner_id=choice.user.pk)
    total = running.count()
    waiting = open_items_for(choice.user).filter(session__in=running).order_by().values("session").distinct().count()
    return total == 0 or waiting * 100 >= choice.minimum_share * total


def _items_for(hook: Webhook) -> QuerySet[AttentionItem]:
    """Select the items of the user or the team that a webhook belongs to."""
    if hook.user is not None:
        return unseen_items_for(hook.user)
    if hook.team is None:
        return AttentionItem.objects.none()
    return team_items(hook.team)


def _plan_webhook(hook: Webhook) -> int:
    target = f"webhook:{hook.id}"
    new = _undelivered_items(_items_for(hook), target, hook.kinds).filter(created_at__gte=hook.created_at)
    items = list(new[:MAX_CONCURRENT_DELIVERIES])
    word_items(items)
    waits = waits_of_items(items)
    made = 0
    for item in items:
        delivery = Delivery(channel="webhook", webhook=hook)
        delivery.payload = webhook_payload(item, str(delivery.id), waits.get(item.key))
        with transaction.atomic():
            delivery.save(force_insert=True)
            made += _add_delivered_items(delivery, [item], target)
    return made


def _restore_dropped_pushes() -> None:
    """Make push messages due again that a process of release 1.0.0 has dropped.

    It takes them for e-mails, drops those to users without an address, and tells no reason.
    """
    dropped = Delivery.objects.filter(channel="push", state=Delivery.State.DROPPED, last_error="", is_test=False)
    recent = dropped.filter(device__isnull=False, created_at__gte=timezone.now() - MAX_DELIVERY_AGE)
    recent.update(state=Delivery.State.PENDING, attempts=0, finished_at=None, next_attempt_at=timezone.now())


def _plan_push(device: PushDevice) -> int:
    target = f"push:{device.id}"
    new = _undelivered_items(unseen_items_for(device.user), target, device.kinds)
    items = list(new.filter(created_at__gte=device.created_at)[:MAX_CONCURRENT_DELIVERIES])
    messages = [[item] for item in items]
    if len(items) > MAX_PUSHES:
        messages = [items]
    made = 0
    for about in messages:
        payload = push_payload(about)
        with transaction.atomic():
            delivery = Delivery.objects.create(channel="push", user=device.user, device=device, payload=payload)
            made += _add_delivered_items(delivery, about, target)
    return made


def _undelivered_items(rows: QuerySet[AttentionItem], target: str, kinds: Sequence[str]) -> QuerySet[AttentionItem]:
    now = timezone.now()
    delivered = DeliveredItem.objects.filter(item=OuterRef("pk"), target=target)
    return rows.filter(
        ~Exists(delivered), kind__in=kinds, created_at__lte=now - PLAN_DELAY, created_at__gte=now - MAX_DELIVERY_AGE
    ).order_by("created_at", "id")


def _add_delivered_items(delivery: Delivery, items: Iterable[AttentionItem], target: str) -> int:
    """Assign items to a delivery, except those that another delivery has; delete a delivery without items."""
    rows = [DeliveredItem(delivery=delivery, item=item, target=target) for item in items]
    # Two workers may plan the same item. The constraint on (item, target) leaves it to the first.
    DeliveredItem.objects.bulk_create(rows, ignore_conflicts=True)
    if DeliveredItem.objects.filter(delivery=delivery).exists():
        return 1
    delivery.delete()
    return 0


def send_due_deliveries() -> int:
    """Send every due delivery; return the number of attempts.

    A receiver decides how long a call takes, up to ``webhooks``'s limits. So several are called at once, but of each
    user and each team only one, of a team and all its members a limited number, and the first delivery of each comes
    before the second one of any. Tests that are requested meanwhile are sent, too.
    """
    round_ = _Round(time.monotonic() + MAX_ROUND_SECONDS)
    with ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="delivery") as threads:
        return round_.run(threads)


def _due_deliveries() -> QuerySet[Delivery]:
    return Delivery.objects.filter(state=Delivery.State.PENDING, next_attempt_at__lte=timezone.now())


def _due_tests() -> QuerySet[Delivery]:
    return _due_deliveries().filter(is_test=True)


_Account = tuple[int | None, ...]
"""Whose deliveries are sent one at a time: the user's, or the team's."""
_ACCOUNT_FIELDS: Final = ("user_id", "webhook__user_id", "webhook__team_id")


class _Round:
    """One round: the due deliveries by account, and the calls that are under way. Only the calls run in threads."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._waiting: dict[_Account, deque[uuid.UUID]] = defaultdict(deque)
        """Deliveries that wait, by account; the account whose turn is next comes first."""
        self._calls: dict[Future[None], tuple[Delivery, _Account]] = {}
        self._teams: dict[_Account, frozenset[int]] = {}
        """The team of each account, or the teams of its user."""
        self._known: set[uuid.UUID] = set()
        self._add(self._load_due())

    @staticmethod
    def _load_due() -> list[tuple[Any, ...]]:
        """Return the ids of due deliveries with their accounts: the first of each account, then the second ones."""
        place = Window(RowNumber(), partition_by=list(map(F, _ACCOUNT_FIELDS)), order_by="next_attempt_at")
        rows = _due_deliveries().annotate(place=place).order_by("place", "next_attempt_at")
        return list(rows.values_list("id", *_ACCOUNT_FIELDS)[:MAX_CONCURRENT_DELIVERIES])

    def _add_new_tests(self) -> None:
        rows = _due_tests().exclude(id__in=self._known).order_by("next_attempt_at")
        self._add(list(rows.values_list("id", *_ACCOUNT_FIELDS)[:MAX_CONCURRENT_DELIVERIES]))

    def _add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add deliveries, given by their ids and accounts."""
        for key, *account in rows:
            self._known.add(key)
            self._waiting[tuple(account)].append(key)
        self._load_teams(set(self._waiting) - set(self._teams))

    def _load_teams(self, accounts: set[_Account]) -> None:
        if not accounts:
            return
        teams_of_users: dict[int, set[int]] = defaultdict(set)
        users = {user or owner for user, owner, _ in accounts}
        for user_id, team_id in User.groups.through.objects.filter(user__in=users).values_list("user_id", "group_id"):
            teams_of_users[user_id].add(team_id)
        for account in accounts:
            user, owner, team = account
            teams = teams_of_users[user or owner or 0]
            if team is not None:
                teams = {team}
            self._teams[account] = frozenset(teams)

    def run(self, threads: ThreadPoolExecutor) -> int:
        """Send until nothing is left, or the time is over: the next round continues. Return the number of attempts."""
        given = 0
        while True:
            given += self._start_calls(threads)
            if not self._calls:
                return given
            done, _ = wait(self._calls, TEST_INTERVAL, FIRST_COMPLETED)
            for call in done:
                row, account = self._calls.pop(call)
                _record_result(row, call.exception())
                if not self._waiting[account]:
                    del self._waiting[account]
            if time.monotonic() < self._until:
                self._add_new_tests()

    def _start_calls(self, threads: ThreadPoolExecutor) -> int:
        """Start a call for each account without one, as long as there is room; return how many were due."""
        given = 0
        for account, keys in list(self._waiting.items()):
            while keys and self._has_room(account):
                row = _claim_delivery(keys.popleft())
                given += row is not None
                if row is not None and (call := _prepare_call(row)) is not None:
                    self._calls[threads.submit(call)] = row, account
                    self._waiting[account] = self._waiting.pop(account)  # its next turn comes after all others
        return given

    def _has_room(self, account: _Account) -> bool:
        """Return whether a call of this account may start now."""
        if len(self._calls) >= MAX_CALLS or time.monotonic() >= self._until:
            return False
        called = [other for _, other in self._calls.values()]
        calls_of_team = Counter(team for other in called for team in self._teams[other])
        return account not in called and all(calls_of_team[team] < MAX_CALLS_PER_TEAM for team in self._teams[account])


_DROP_REASONS: Final = {"push": "Nothing was left to tell, or this device was signed out or removed."}
"""Why a delivery was dropped, by its channel."""


def _claim_delivery(delivery_id: Any) -> Delivery | None:
    """Claim a delivery for this worker; None if it is not due. One that is no longer wanted is dropped."""
    now = timezone.now()
    # The UPDATE claims the delivery, because it is no longer due for other workers. If this worker dies while sending,
    # the delivery is due again after CLAIM_TIMEOUT: it may then arrive twice, but is never lost.
    due = Delivery.objects.filter(id=delivery_id, state=Delivery.State.PENDING, next_attempt_at__lte=now)
    if not due.update(attempts=F("attempts") + 1, next_attempt_at=now + CLAIM_TIMEOUT):
        return None
    row: Delivery = Delivery.objects.select_related(
        "user", "device__user", "device__signed_with", "webhook__user", "webhook__team", "webhook__created_by"
    ).get(id=delivery_id)
    if not _is_wanted(row):
        _finish_delivery(row, Delivery.State.DROPPED, _DROP_REASONS.get(row.channel, ""))
        row.state = Delivery.State.DROPPED
    return row


def _record_result(row: Delivery, error: BaseException | None) -> None:
    if error is None:
        _finish_delivery(row, Delivery.State.SENT)
    elif isinstance(error, DeviceGone):
        _record_gone_device(row, error)
    elif isinstance(error, webhooks.WebhookFailed):
        _record_failure(row, str(error), permanent=error.permanent)
    else:  # each mail backend has errors of its own
        log.warning("delivery %s failed: %s", row.id, type(error).__name__)
        _record_failure(row, f"{type(error).__name__}: the mail server did not accept the message.")


def _record_gone_device(row: Delivery, error: DeviceGone) -> None:
    device = row.device
    # While this was sent, the browser may have reported another subscription: that one gets the message instead.
    if device and PushDevice.objects.filter(pk=device.pk).exclude(endpoint_digest=device.endpoint_digest).exists():
        _record_failure(row, str(error))
        return
    PushDevice.objects.filter(deliveries=row).delete()
    _record_failure(row, f"{error} The device was removed.", permanent=True)


def _is_wanted(row: Delivery) -> bool:
    """Return whether the receiver may still see it and any of its items is still open."""
    user = row.user
    if user is None and row.webhook is not None:
        user = row.webhook.user
    if user is not None and not user.is_active:
        return False
    if row.channel == "email" and not (user and user.email):
        return False
    if row.channel == "push" and not (row.device and gets_messages(row.device)):
        return False
    if row.is_test:
        return True
    if row.webhook is not None and not (row.webhook.enabled and _may_still_notify_team(row.webhook)):
        return False
    if user is not None:
        rows = open_items_for(user)
    else:
        rows = AttentionItem.objects.filter(resolved_at=None)
    return bool(rows.filter(deliveries=row).exists())


def _prepare_call(row: Delivery) -> Callable[[], None] | None:
    """Return the function that sends a delivery, without the database; None if it was dropped or cannot be written.

    One that cannot be written is recorded as failed: it must not keep the others of its round from being sent.
    """
    if row.state != Delivery.State.PENDING:
        return None
    try:
        return _build_call(row)
    except Exception as error:
        log.exception("delivery %s cannot be written", row.id)
        _record_failure(row, f"{type(error).__name__}: the message could not be written.")
        return None


def _build_call(row: Delivery) -> Callable[[], None]:
    if row.channel == "email":
        assert row.user is not None  # noqa: S101
        content = row.payload
        if not row.is_test:
            content = _add_other_waits(_visible_items_only(row), row.user)
        message = EmailMessage(content["subject"], content["text"], None, [row.user.email])
        return lambda: _send_email(message)
    if row.channel == "push":
        push = push_request(row, absolute_url("/"))
        return lambda: _push(push)
    assert row.webhook is not None  # noqa: S101
    body = json.dumps(row.payload, ensure_ascii=False, separators=(",", ":")).encode()
    hook = row.webhook
    request = webhooks.WebhookRequest(hook.url, hook.secret, body, str(row.id), str(row.payload["type"]))
    return lambda: _call_webhook(request)


def _send_email(message: EmailMessage) -> None:
    message.send()


def _call_webhook(request: webhooks.WebhookRequest) -> None:
    webhooks.send_webhook(request)


def _push(request: PushRequest) -> None:
    send_push(request)


def _visible_items_only(row: Delivery) -> dict[str, str]:
    """Render an e-mail again without items that its reader can no longer see, after leaving a team."""
    assert row.user is not None  # noqa: S101 - an e-mail has a reader
    seen = list(visible_items(row.user).filter(deliveries=row).order_by("created_at", "id"))
    payload: dict[str, str] = row.payload
    if len(seen) == row.items.count():
        return payload
    return render_email(seen)


def _add_other_waits(content: dict[str, str], user: User) -> dict[str, str]:
    """Name the open waits that no item is about, before the footer. Only now, as the user may see them now."""
    columns = {}
    if NotificationSettings.objects.filter(user=user, only_mine=True).exists():
        columns = {"session__owner": user.pk}
    others = waits_without_item(user, MAX_OTHER_WAITS, **columns)
    if not others:
        return content
    text, footer = content["text"].rsplit("\n\n", 1)
    waits = make_visible("\n".join(["Open waits that need no action:", *map(_render_wait, others)]))
    return {**content, "text": f"{text}\n\n{waits}\n\n{footer}"}


def _record_failure(row: Delivery, error: str, *, permanent: bool = False) -> None:
    if permanent or row.is_test or row.attempts >= MOST_ATTEMPTS:
        _finish_delivery(row, Delivery.State.FAILED, error)
        return
    pause = min(FIRST_RETRY_DELAY * 4 ** (row.attempts - 1), MAX_RETRY_DELAY) * (0.75 + random.random() / 2)  # noqa: S311
    Delivery.objects.filter(id=row.id).update(last_error=error[:300], next_attempt_at=timezone.now() + pause)


def _finish_delivery(row: Delivery, state: Delivery.State, error: str = "") -> None:
    values = {"state": state, "finished_at": timezone.now(), "last_error": error[:300]}
    Delivery.objects.filter(id=row.id, state=Delivery.State.PENDING).update(**values)


def delete_old_deliveries() -> int:
    """Delete deliveries and items that ended more than a month ago; return their number."""
    before = timezone.now() - RETENTION
    gone, _ = Delivery.objects.exclude(state=Delivery.State.PENDING).filter(created_at__lt=before).delete()
    items, _ = AttentionItem.objects.filter(resolved_at__lt=before).delete()
    return gone + items
