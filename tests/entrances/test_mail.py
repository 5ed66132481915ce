"""E-mails and webhook requests about what agents ask: as many items as one has, each with the longest texts."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from sessions_app.attention.rules.notices import permission_notice
from sessions_app.attention.rules.quotations import fill_in, show_quotations
from sessions_app.models import AttentionItem, Task
from sessions_app.notifications.delivery import MAX_CONCURRENT_DELIVERIES, render_email, webhook_payload
from tests.entrances.shapes import SIZES, TEXTS
from tests.growth import measure_growth

ITEM_LIMIT = 6_000
"""Characters of one item in an e-mail, whatever the agent wrote: invisible ones take five."""
EMAIL_LIMIT = MAX_CONCURRENT_DELIVERIES * ITEM_LIMIT


def items(text: str) -> list[AttentionItem]:
    """Return the items of one e-mail, raised by requests whose fields are all this text."""
    call = {"title": text, "tool_kind": text, "sub_agent": text, "raw_input": text, "locations": [{"path": text}]}
    notice = permission_notice("p1", call)
    task = Task(title=text[:300], team=Group(name=text[:150]))
    about = {"kind": notice.kind, "task": task, "created_at": timezone.now(), **notice.columns()}
    return [
        AttentionItem(key=str(number), session_id=uuid.uuid4(), **about) for number in range(MAX_CONCURRENT_DELIVERIES)
    ]


def word(item: AttentionItem) -> None:
    """Put the quotations of an item into its texts, in this process."""
    texts = {"what": item.what, "why": item.why}
    quoted = item.quoted or "{}"
    for name, words in fill_in(texts, quoted, show_quotations(quoted, [])).items():
        setattr(item, name, words)
    item.is_worded = True


def send(rows: list[AttentionItem]) -> Any:
    """Word all items, render an e-mail about them, and a webhook request about each."""
    for row in rows:
        word(row)
    email = render_email(rows)
    assert len(email["text"]) < EMAIL_LIMIT
    for row in rows:
        payload = webhook_payload(row, "d1")
        assert len(payload["item"]["why"]) < ITEM_LIMIT


@pytest.mark.parametrize("name", TEXTS)
def test_sending_items_costs_at_most_in_proportion_to_the_texts_of_agents(name: str) -> None:
    measure_growth(send, lambda size: items(TEXTS[name](size)), sizes=SIZES).assert_bounded()
