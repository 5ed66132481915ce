"""Quotations are stored as they are, and reach nobody before they were searched for secrets, in no transaction."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.db import connection, transaction
from django.test import Client

from executors_app.models import AgentProfile
from sessions_app.attention.models import update_wording
from sessions_app.attention.rules import notices
from sessions_app.attention.services import wording
from sessions_app.attention.services.wording import word_items
from sessions_app.confined.client import Failure, Outcome, PoolUnavailable
from sessions_app.models import AttentionItem, raise_item, session_transaction
from sessions_app.notifications import delivery
from sessions_app.notifications.models import Delivery, Webhook
from sessions_app.notifications.user_settings import change_settings
from sessions_app.portable.exporter import Exporter
from sessions_app.rendering.pool import TEXT_POOL
from tests.api.world import World, client_of
from tests.attention.raising import backdate, raise_item_of
from tests.attention.reading import as_read

GHOST: Final = "ghp_0123456789abcdefABCDEF0123456789abcd"
KNOWN: Final = "correct-horse-battery"
UNIQUE: Final = "zebra crossing"
LEFT_OUT: Final = "could not be searched for secrets"
CALL: Final = {"title": f"{UNIQUE} {GHOST}", "raw_input": {"header": f"{KNOWN} {GHOST}"}}


@pytest.fixture
def item(world: World) -> AttentionItem:
    """Return an item that quotes a token, and a secret of the agent's profile."""
    profile = AgentProfile.objects.get(pk=world.profile.pk)
    profile.env = {"API_KEY": KNOWN}
    profile.save()
    return raise_notice(world, notices.permission_notice("p1", CALL))


def raise_notice(world: World, notice: notices.Notice) -> AttentionItem:
    with session_transaction(world.session.id) as changes:
        raise_item(changes, notice)
    return backdate(AttentionItem.objects.get(key=notice.key), 60)


class CountedSearches:
    """Counts the items that are searched; ``failure`` takes the place of each result."""

    def __init__(self) -> None:
        self.items = 0
        self.failure: Failure | Exception | None = None
        self._run = TEXT_POOL.run_batch

    def __call__(self, operation: str, batch: Any, **limits: Any) -> list[Outcome]:
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            return [Outcome(failure=self.failure)] * len(batch)
        self.items += len(batch)
        return self._run(operation, batch, **limits)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> CountedSearches:
    counted = CountedSearches()
    monkeypatch.setattr(TEXT_POOL, "run_batch", counted)
    return counted


def test_quotation_is_stored_as_it_is_beside_a_sentence_without_it(item: AttentionItem) -> None:
    assert item.why == "It asks to run: […]. Input: […]"
    assert GHOST in item.quoted
    shown = as_read(item).why
    assert shown == f'It asks to run: {UNIQUE} [REDACTED]. Input: {{"header": "[REDACTED] [REDACTED]"}}'


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            {"title": "Test", "tool_kind": "execute", "raw_input": {"command": "make green"}},
            "Test. Command: make green",
        ),
        ({"title": "`make`", "raw_input": {"command": "make"}}, "`make`"),
        ({"title": "Test", "raw_input": {"cmd": ["bash", "-lc", "make | tail"]}}, "Test. Command: make | tail"),
        ({"title": "Read", "tool_kind": "read", "raw_input": {"path": "a"}}, 'Read (read). Input: {"path": "a"}'),
        ({"title": "Run", "tool_kind": "execute", "raw_input": "make"}, "Run. Command: make"),
    ],
)
def test_request_tells_a_command_as_it_is_typed(call: dict[str, Any], expected: str, world: World) -> None:
    item = raise_notice(world, notices.permission_notice("p2", call))
    assert as_read(item).why == f"It asks to run: {expected}"


@pytest.mark.parametrize("field", ["command", "cmd"])
def test_command_of_very_many_words_is_told_as_its_input(field: str, world: World) -> None:
    call = {"title": "Run", "raw_input": {field: [";"] * 100_000}}
    why = as_read(raise_notice(world, notices.permission_notice("p2", call))).why
    assert why.startswith(f'It asks to run: Run. Input: {{"{field}": [";", ";"')


def test_item_is_searched_once(item: AttentionItem, searches: CountedSearches) -> None:
    first, second = as_read(item).why, as_read(item).why
    assert (first == second, searches.items) == (True, 1)


def change_rules(monkeypatch: pytest.MonkeyPatch, item: AttentionItem) -> None:
    monkeypatch.setattr(wording, "RULES_VERSION", 10_000)


def change_secrets(monkeypatch: pytest.MonkeyPatch, item: AttentionItem) -> None:
    assert item.session is not None
    profile = item.session.agent_profile
    profile.env = {"API_KEY": KNOWN, "OTHER_TOKEN": UNIQUE}
    profile.save()


def rotate_secrets(monkeypatch: pytest.MonkeyPatch, item: AttentionItem) -> None:
    assert item.session is not None
    profile = AgentProfile.objects.get(pk=item.session.agent_profile.pk)
    profile.env = {"API_KEY": UNIQUE}
    profile.save(update_fields=["env"])


def change_texts(monkeypatch: pytest.MonkeyPatch, item: AttentionItem) -> None:
    update_wording(notices.permission_notice("p1", {**CALL, "title": "More is known"}))


@pytest.mark.parametrize("change", [change_rules, change_secrets, rotate_secrets, change_texts])
def test_changed_rules_secrets_and_texts_need_another_search(
    item: AttentionItem,
    searches: CountedSearches,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch, AttentionItem], None],
) -> None:
    before = as_read(item).why
    change(monkeypatch, item)
    after = as_read(item).why
    assert searches.items == 2
    assert (before == after) == (change is change_rules)
    assert GHOST not in after and KNOWN not in after


@pytest.mark.parametrize(
    ("failure", "is_final"),
    [
        (PoolUnavailable("busy"), False),
        (Failure.NOT_REACHED, False),
        (Failure.TOO_EXPENSIVE, True),
        (Failure.BROKEN, True),
    ],
    ids=["no process", "not reached", "too expensive", "broken"],
)
def test_quotation_that_was_not_searched_is_left_out_and_that_is_said(
    item: AttentionItem, searches: CountedSearches, failure: Any, is_final: bool
) -> None:
    searches.failure = failure
    why = as_read(item).why
    assert (why.count(LEFT_OUT), UNIQUE in why, GHOST in why) == (2, False, False)
    searches.failure = None
    assert (UNIQUE in as_read(item).why) is not is_final


def test_nothing_is_quoted_while_the_secrets_cannot_be_read(
    item: AttentionItem, searches: CountedSearches, settings: Any
) -> None:
    key, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    assert LEFT_OUT in as_read(item).why
    assert searches.items == 0
    settings.SECRET_KEY = key
    assert UNIQUE in as_read(item).why


def test_items_are_searched_outside_of_transactions_only(item: AttentionItem) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="transaction"):
        word_items([item])


def test_items_of_the_previous_release_are_shown_as_they_are(world: World, searches: CountedSearches) -> None:
    shown = as_read(raise_item_of(world.session))
    assert (shown.what, shown.why, searches.items) == ("What one", "Why one", 0)


def test_previous_release_can_write_items(item: AttentionItem) -> None:
    new = {"quoted", "worded", "worded_for"}
    columns = [str(field.column) for field in AttentionItem._meta.concrete_fields if field.name not in new]
    values = [{"id": "%s", "key": "'another'"}.get(column, column) for column in columns]
    with connection.cursor() as cursor:
        key = AttentionItem._meta.pk.get_db_prep_value(uuid.uuid4(), connection)
        table, names, given = AttentionItem._meta.db_table, ", ".join(columns), ", ".join(values)
        cursor.execute(f"INSERT INTO {table} ({names}) SELECT {given} FROM {table}", [key])  # noqa: S608
    assert as_read(AttentionItem.objects.get(key="another")).why == item.why


def test_text_that_the_previous_release_has_written_over_is_kept(item: AttentionItem) -> None:
    AttentionItem.objects.filter(pk=item.pk).update(why="It asks to run: make")
    assert as_read(item).why == "It asks to run: make"


def test_items_of_several_sessions_take_as_many_queries_as_one(
    world: World, django_assert_num_queries: Any, item: AttentionItem
) -> None:
    for number in range(3):
        raise_notice(world, notices.permission_notice(f"more{number}", CALL))
    items = list(AttentionItem.objects.select_related("task__team", "workflow__team"))
    with django_assert_num_queries(3):  # two that read, and one that writes
        word_items(items)
    assert all(UNIQUE in found.why for found in items)


@pytest.fixture
def surfaces(world: World, item: AttentionItem, settings: Any, tmp_path: Path) -> Mapping[str, str]:
    """Return what each place where items leave the product says about the item."""
    settings.KANDEV_EMAIL = True
    settings.KANDEV_DATA_DIR = tmp_path
    world.member.email = "member@example.com"
    world.member.save()
    change_settings(world.member, {"email": True})
    Webhook.objects.create(user=world.member, url="https://receiver.example/", kinds=["permission"])
    Webhook.objects.update(created_at=item.created_at)
    api, member, root = client_of(world.member), Client(), Client()
    member.force_login(world.member)
    root.force_login(User.objects.create(username="root", is_staff=True, is_superuser=True))
    delivery.plan_deliveries()
    admin = "/admin/sessions_app/attentionitem/"
    return {
        "list of the API": api.get("/api/v1/attention/").content.decode(),
        "item of the API": api.post(f"/api/v1/attention/{item.id}/acknowledge/").content.decode(),
        "page": member.get("/attention/").text,
        "page's updates": member.get("/attention/live/").text,
        "list of the admin": root.get(admin).text,
        "page of the admin": root.get(f"{admin}{item.id}/change/").text,
        "deliveries": json.dumps(list(Delivery.objects.values_list("payload", flat=True))),
        "mail": json.dumps(delivery.render_email([item])),
        "webhook": json.dumps(delivery.webhook_payload(item, "1")),
        "events of the session": json.dumps(list(world.session.events.values_list("payload", flat=True))),
    }


WITHOUT_THE_QUOTATION: Final = {"list of the admin", "events of the session"}
"""Places that name the item and do not quote it."""


def test_secret_in_a_quotation_reaches_no_surface(surfaces: Mapping[str, str]) -> None:
    assert [name for name, text in surfaces.items() if GHOST in text or KNOWN in text] == []
    assert {name for name, text in surfaces.items() if UNIQUE not in text} == WITHOUT_THE_QUOTATION
    assert [name for name in surfaces if name not in WITHOUT_THE_QUOTATION and "REDACTED" not in surfaces[name]] == []


def test_nothing_was_sent_meanwhile(surfaces: Mapping[str, str]) -> None:
    assert mail.outbox == []
    assert Delivery.objects.count() == 2


def test_portable_record_has_no_quotations(world: World, item: AttentionItem, settings: Any, tmp_path: Path) -> None:
    settings.KANDEV_DATA_DIR = tmp_path
    as_read(item)
    exporter = Exporter("boot")
    while exporter.step(final=True):
        pass
    exporter.close()
    written = "".join(path.read_text() for path in (tmp_path / "sessions").rglob("*") if path.is_file())
    assert f'"item_id":"{item.id}"' in written
    assert UNIQUE not in written


def test_result_is_stored_apart_from_the_texts(item: AttentionItem) -> None:
    assert (item.worded, item.worded_for) == ("", "")
    as_read(item)
    stored = AttentionItem.objects.get(pk=item.pk)
    assert stored.worded_for
    assert GHOST not in stored.worded and stored.why == item.why
