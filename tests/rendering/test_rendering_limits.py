"""What text of agents and members may cost a page: processor time, characters, and stored results."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from sessions_app.confined.client import ConfinedPool, Failure
from sessions_app.models import Message, MessagePart, RenderedText, Repository, TaskSession
from sessions_app.rendering import services as text_rendering
from sessions_app.rendering.services import PAGE_LIMITS, Text, render_texts
from sessions_app.stream import views as conversation
from sessions_app.stream.views import FAILURE_NOTES, PAGE_CHARS, last_messages, messages_around, render_messages
from tests.growth import measure_growth
from tests.pages.world import World, asks, ingest_lines, path_of

BROKEN: Final = "tests.confined.nothing"
"""A module that does not exist, so that no server of it starts."""


READER: Final = User(username="reader")


@pytest.fixture
def session(world: World) -> TaskSession:
    return world.running_session()


def no_pool(monkeypatch: pytest.MonkeyPatch) -> ConfinedPool:
    pool = ConfinedPool(BROKEN)
    monkeypatch.setattr(text_rendering, "TEXT_POOL", pool)
    return pool


def say(session: TaskSession, text: str, *, complete: bool = True, role: str = "agent") -> Message:
    """Store a message, as ingest does."""
    seq = (session.messages.order_by("-seq").values_list("seq", flat=True).first() or 0) + 1
    message: Message = session.messages.create(
        seq=seq, updated_seq=seq, role=role, complete=complete, created_at=timezone.now()
    )
    size = 64 * 1024
    MessagePart.objects.bulk_create(
        MessagePart(message=message, number=number, text=text[start : start + size])
        for number, start in enumerate(range(0, len(text), size))
    )
    return message


def call(session: TaskSession, **payload: Any) -> Message:
    message = say(session, "", role="tool")
    message.payload = {"title": "Edit", "status": "completed", **payload}
    message.save()
    return message


def shown(session: TaskSession) -> list[str]:
    return [item["html"] for item in render_messages(last_messages(session)[0], READER)]


HOSTILE_MARKDOWN: Final[dict[str, Callable[[int], str]]] = {
    "blank lines of C": lambda size: "```c\n" + "\n" * size + "\n```",
    "a table": lambda size: "|a|b|\n|-|-|\n" + "|c|d|\n" * (size // 6),
    "a wide table": lambda size: "|" + "a|" * (size // 4) + "\n|" + "-|" * (size // 4),
    "brackets": lambda size: "[" * size,
    "emphasis": lambda size: "*a **b " * (size // 7),
    "quotes": lambda size: ">" * size + " a",
    "backticks": lambda size: "".join("`" * length + " " for length in range(1, int((2 * size) ** 0.5))),
    "links": lambda size: "[a](https://x.example) " * (size // 23),
    "links in links": lambda size: "[a](" * (size // 4),
    "references": lambda size: "".join(f"[{number}]: /\n[{number}] " for number in range(size // 14)),
    "entities": lambda size: "&#x41" * (size // 5),
    "combining characters": lambda size: "a" + "\u0301\u0323" * (size // 2),
    "escape characters": lambda size: "\x1b[" * (size // 2),
    "comments of Haskell": lambda size: "```haskell\n" + "{-" * (size // 2) + "\n```",
    "strings of Python": lambda size: "```python\n" + "f'{" * (size // 3) + "\n```",
    "words of SQL": lambda size: "```sql\n" + "select " * (size // 7) + "\n```",
    "nested lists": lambda size: "\n".join("  " * depth + "- a" for depth in range(int(size**0.5))),
}
HOSTILE_CALLS: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "small diffs": lambda size: {
        "content": [{"type": "diff", "path": "a", "oldText": "a\nb\n", "newText": "b\na\n"}] * (size // 60)
    },
    "lines in another order": lambda size: {
        "content": [
            {
                "type": "diff",
                "oldText": "".join(f"{number}\n" for number in range(size // 10)),
                "newText": "".join(f"{number}\n" for number in reversed(range(size // 10))),
            }
        ]
    },
    "equal lines": lambda size: {
        "content": [{"type": "diff", "oldText": "a\n" * (size // 4), "newText": "b\na\n" * (size // 8)}]
    },
    "nested input": lambda size: {"raw_input": [_nested(100)] * (size // 200)},
    "outputs": lambda size: {"content": [{"content": {"text": "x"}}] * (size // 10)},
    "places": lambda size: {"locations": [{"path": "x"}] * (size // 10)},
    "a title": lambda size: {"title": "x\u202e" * (size // 2)},
}


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.any_database
@pytest.mark.parametrize("shape", HOSTILE_MARKDOWN.values(), ids=HOSTILE_MARKDOWN)
def test_cost_of_a_message_is_bounded(shape: Callable[[int], str], session: TaskSession) -> None:
    def show(text: str) -> None:
        render_messages([say(session, text)], READER)

    measure_growth(show, shape).assert_bounded(budget=text_rendering.TEXT_CPU_SECONDS + 0.5)


@pytest.mark.any_database
@pytest.mark.parametrize("shape", HOSTILE_CALLS.values(), ids=HOSTILE_CALLS)
def test_cost_of_a_tool_call_is_bounded(shape: Callable[[int], dict[str, Any]], session: TaskSession) -> None:
    def show(payload: dict[str, Any]) -> None:
        render_messages([call(session, **payload)], READER)

    measure_growth(show, shape).assert_bounded(budget=text_rendering.TEXT_CPU_SECONDS + 0.5)


@pytest.mark.any_database
@pytest.mark.parametrize("role", ["user", "thought", "status"])
def test_cost_of_other_messages_is_bounded(role: str, session: TaskSession) -> None:
    def show(text: str) -> None:
        render_messages([say(session, text, role=role)], READER)

    measure_growth(show, lambda size: "\u202e\x1b[" * (size // 3)).assert_bounded()


@pytest.mark.any_database
def test_cost_of_a_page_of_hostile_messages_is_bounded(session: TaskSession, world: World) -> None:
    client = Client()
    client.force_login(world.ada)

    def show(count: int) -> None:
        session.messages.all().delete()
        for number in range(count):
            say(session, "```c\n" + "\n" * (6_000 + number) + "\n```")
        assert client.get(path_of(session)).status_code == 200

    growth = measure_growth(show, lambda size: size, sizes=(4, 32))
    growth.assert_within(PAGE_LIMITS.cpu_seconds + 1.5)


@pytest.mark.any_database
def test_cost_of_a_queued_prompt_is_bounded(session: TaskSession, world: World) -> None:
    client = Client()
    client.force_login(world.ada)

    def show(text: str) -> None:
        session.prompts.update(text=text, state="queued")
        assert client.get(path_of(session)).status_code == 200

    shape = HOSTILE_MARKDOWN["combining characters"]
    measure_growth(show, shape, sizes=(20_000, 40_000, 80_000, 160_000)).assert_bounded()


def test_expensive_text_costs_only_itself(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    say(session, "*before*")
    say(session, HOSTILE_MARKDOWN["blank lines of C"](16_000))
    say(session, "*after*")
    pages = [shown(session)]
    no_pool(monkeypatch)  # the second time, it is known to be too expensive
    pages.append(shown(session))
    for before, hostile, after in (page[-3:] for page in pages):
        assert "<em>before</em>" in before
        assert "<em>after</em>" in after
        assert FAILURE_NOTES[Failure.TOO_EXPENSIVE] in hostile
        assert "Open the whole message" in hostile


def test_page_is_shown_without_a_pool(session: TaskSession, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    no_pool(monkeypatch)
    say(session, "*plain* <b>")
    call(session, title="Write a.py", raw_input={"a": 1})
    ingest_lines(session, asks(title="Delete b.py", raw_input={"b": 1}))
    client = Client()
    client.force_login(world.ada)
    html = client.get(path_of(session)).text
    assert "*plain* &lt;b&gt;" in html
    assert FAILURE_NOTES[Failure.NOT_REACHED] in html
    assert "Write a.py" in html
    assert "Delete b.py" in html
    assert html.count("The details could not be prepared in time.") == 1
    assert "The request is shown as the agent sent it, for now." in html
    assert "&quot;raw_input&quot;: {&quot;b&quot;: 1}" in html
    assert 'value="allow"' in html


def test_unfinished_text_is_never_sent_to_the_pool(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = no_pool(monkeypatch)
    say(session, "*growing* <b>  \n", complete=False)
    (html,) = shown(session)[-1:]
    assert "*growing* &lt;b&gt;  \n</div>" in html
    assert "Reload" not in html
    assert pool._process is None
    assert not RenderedText.objects.exists()


def test_texts_are_rendered_once(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    say(session, "*once*")
    call(session, raw_input={"a": 1})
    first = shown(session)
    pool = no_pool(monkeypatch)
    assert shown(session) == first
    assert pool._process is None


def test_new_version_of_the_renderer_renders_again(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text("markdown", {"text": "*a*"})
    render_texts(session, [text])
    no_pool(monkeypatch)
    monkeypatch.setattr(text_rendering, "_versions", lambda: ["another"])
    assert render_texts(session, [text]) == [Failure.NOT_REACHED]


def test_results_are_deleted_with_their_session(session: TaskSession) -> None:
    say(session, "*a*")
    shown(session)
    assert session.rendered_texts.exists()
    session.delete()
    assert not RenderedText.objects.exists()


def test_results_of_one_team_serve_no_other(
    session: TaskSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Group.objects.create(name="Another team")
    user = User.objects.create_user("ida")
    user.groups.add(other)
    repository = Repository.objects.create(name="other", team=other, path="/srv/other")
    theirs = replace(world, ada=user, team=other, repository=repository).session()
    text = Text("markdown", {"text": "*a*"})
    assert render_texts(session, [text]) == render_texts(theirs, [text])
    assert len(set(RenderedText.objects.values_list("key", flat=True))) == 2
    no_pool(monkeypatch)
    theirs.rendered_texts.all().delete()
    assert render_texts(theirs, [text]) == [Failure.NOT_REACHED]


def test_stored_results_of_a_session_are_bounded(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rendering, "STORED_LIMIT", 200)
    for number in range(10):
        render_texts(session, [Text("markdown", {"text": f"{number} " + "x" * 30})])
    sizes = list(session.rendered_texts.values_list("size", flat=True))
    assert sum(sizes) <= 200
    assert "9 x" in session.rendered_texts.latest("id").result


def test_long_results_are_not_stored(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_rendering, "RESULT_LIMIT", 50)
    assert render_texts(session, [Text("markdown", {"text": "x" * 100})]) == [Failure.TOO_EXPENSIVE]
    assert session.rendered_texts.get().size == 4


def test_pages_are_bounded_and_reach_every_message(session: TaskSession) -> None:
    message_ids = [say(session, f"{number} " + "x" * 100_000).id for number in range(12)]
    found: list[Any] = []
    before, older = None, True
    while older:
        page, older = last_messages(session, before)
        assert 1 <= len(page) <= PAGE_CHARS // 100_000
        found = [*page, *found]
        before = page[0].seq
    assert [message.id for message in found][-12:] == message_ids


def test_linked_message_is_on_its_page_beside_long_ones(session: TaskSession) -> None:
    messages = [say(session, "x" * 200_000) for _ in range(20)]
    page, older, newer = messages_around(session, messages[14].seq)
    assert messages[14] in page
    assert (older, newer) == (True, True)


def test_changed_messages_come_in_bounded_pages(session: TaskSession) -> None:
    message_ids = {say(session, "x" * 100_000).id for _ in range(12)}
    found, after, more = set(), 0, True
    while more:
        page, more = conversation.changed_messages(session, after)
        assert len(page) <= PAGE_CHARS // 100_000 + 1
        found |= {message.id for message in page}
        after = page[-1].updated_seq
    assert message_ids <= found


@pytest.mark.parametrize("role", ["agent", "user"])
@pytest.mark.parametrize("complete", [True, False])
def test_long_message_is_shown_in_parts(role: str, complete: bool, session: TaskSession, ada: Client) -> None:
    text = "".join(f"{number:07d}\n" for number in range(2 * (1 << 20) // 8))
    message = say(session, text, role=role, complete=complete)
    page = ada.get(path_of(session)).text
    assert len(page) < 300_000
    assert ("0000000\n" in page) == (complete or role == "user")
    address, parts = f"{path_of(session)}messages/{message.id}/", []
    for number in range(100):
        html = ada.get(address, {"page": number}).text
        parts.append(re.search("<pre[^>]*>(.*)</pre>", html, re.DOTALL)[1])  # type: ignore[index]
        if "Next part" not in html:
            break
    assert "".join(parts) == text


def test_large_tool_call_is_shown_in_parts(session: TaskSession, ada: Client) -> None:
    message = call(session, raw_output="y" * 1_200_000)
    say(session, "*after*")
    page = ada.get(path_of(session)).text
    assert "too large to be shown here" in page
    assert "<em>after</em>" in page
    address = f"{path_of(session)}messages/{message.id}/"
    html = [ada.get(address, {"page": number}).text for number in range(5)]
    assert sum(part.count("y") for part in html) > 1_200_000
    assert ["Next part" in part for part in html] == [True, True, True, True, False]


def test_page_measures_a_bounded_part_of_the_database(session: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "PAGE_PAYLOADS", 1_000_000)
    for _ in range(5):
        call(session, raw_output="y" * 400_000)
    page, older = last_messages(session)
    assert (len(page), older) == (2, True)


def test_large_permission_can_be_rejected(session: TaskSession, ada: Client) -> None:
    ingest_lines(session, asks(title="Delete b.py", raw_input="y" * 3_000_000))
    page = ada.get(path_of(session)).text
    assert "Delete b.py" in page
    assert 'value="reject"' in page
    assert 'value="allow"' not in page
    assert len(page) < 1_500_000


@pytest.mark.any_database
def test_cost_of_a_permission_card_is_bounded(session: TaskSession, world: World) -> None:
    client = Client()
    client.force_login(world.ada)
    ingest_lines(session, asks(title="Edit"))

    def show(payload: dict[str, Any]) -> None:
        session.permissions.update(tool_call={"title": "Edit", **payload})
        assert 'value="allow"' in client.get(path_of(session)).text

    sizes = (8_000, 16_000, 32_000, 64_000, 128_000)
    growth = measure_growth(show, HOSTILE_CALLS["equal lines"], sizes=sizes)
    growth.assert_bounded(budget=text_rendering.TEXT_CPU_SECONDS + 0.7)


def test_message_of_another_session_is_not_found(session: TaskSession, world: World, ada: Client) -> None:
    message = say(session, "x")
    other = world.session()
    assert ada.get(f"{path_of(other)}messages/{message.id}/").status_code == 404
    assert ada.get(f"{path_of(session)}messages/{message.id}/?page=999999999999").status_code == 404
