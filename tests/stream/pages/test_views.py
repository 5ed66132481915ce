"""Rendering of messages: safe markdown, tool calls, plans and errors."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from sessions_app.models import TaskSession
from sessions_app.rendering.operations.markdown import render_markdown
from sessions_app.rendering.operations.tool_calls import UNFOLDED_LINES
from sessions_app.stream.views import GROWING_LIMIT, last_messages, render_messages
from tests.pages.world import World, asks, first_prompt, ingest_lines, path_of


@pytest.mark.parametrize("address", ["https://evil.example/", "https:///evil.example/", "HTTP:////evil.example"])
def test_link_names_the_host_that_a_browser_would_open(address: str) -> None:
    assert '<span class="host">evil.example</span>' in render_markdown(f"[https://good.example]({address})")


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("<script>alert(1)</script>", "<script"),
        ("<img src=x onerror=alert(1)>", "<img"),
        ("[x](javascript:alert(1))", 'href="javascript'),
        ("[x](JaVaScRiPt:alert(1))", 'href="JaVa'),
        ("[x](data:text/html,<script>1</script>)", 'href="data'),
        ("[x](vbscript:x)", 'href="vbscript'),
        ("<javascript:alert(1)>", "<a"),
        ("![x](https://spy.example/p.png)", "<img"),
        ("[x]: javascript:alert(1)\n\n[x]", "href"),
        ("| a |\n|:-:|\n| 1 |", "style="),
        ('```js" onload="x\nk\n```', "onload"),
        ("<iframe src=//evil.example></iframe>", "<iframe"),
        ("<a href='x' onclick='y'>k</a>", "<a"),
        ('[x](https://ok.example "t" onclick="y")', "<a"),
        ("<svg><script>1</script></svg>", "<svg"),
        ("<form action=//evil.example><input name=x></form>", "<form"),
        ("<style>*{display:none}</style>", "<style"),
        ("<!--><script>1</script>-->", "<script"),
    ],
)
def test_markdown_cannot_inject_unsafe_html(text: str, never: str) -> None:
    assert never not in render_markdown(text)


def test_markdown_formatting_is_rendered() -> None:
    html = render_markdown("# T\n\n*a* **b** `c` ~~d~~ [e](https://x.example)\n\n- f\n\n```\n<g>\n```\n\n|h|\n|-|\n|i|")
    for piece in ("<h1>T</h1>", "<em>a</em>", "<strong>b</strong>", "<code>c</code>", "<s>d</s>", "<li>f</li>"):
        assert piece in html
    for piece in ('href="https://x.example"', 'rel="noopener noreferrer nofollow"', 'target="_blank"'):
        assert piece in html
    assert "&lt;g&gt;" in html
    assert "<td>i</td>" in html


def shown(session: TaskSession) -> list[str]:
    return [item["html"] for item in render_messages(last_messages(session)[0], session.owner)]


def test_user_and_agent_text_is_never_treated_as_html(world: World) -> None:
    session = world.running_session()
    evil = "<script>alert(1)</script>"
    session.prompts.update(text=evil)
    ingest_lines(
        session,
        {"kind": "message.thought", "text": evil},
        {
            "kind": "tool.call",
            "tool_call_id": evil,
            "title": evil,
            "status": evil,
            "raw_input": {"x": evil},
            "locations": [{"path": evil}],
            "content": [{"type": "diff", "path": evil, "oldText": evil, "newText": evil}],
        },
        {"kind": "plan", "entries": [{"content": evil, "status": evil}]},
        {"kind": "message.user", "text": evil},
        asks(title=evil, kind=evil),
    )
    client = Client()
    client.force_login(world.ada)
    assert "<script>alert" not in client.get(path_of(session)).text


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("pending", "Waiting"),
        ("in_progress", "Running"),
        ("completed", "Done"),
        ("failed", "Failed"),
        ("something new", "something new"),
    ],
)
def test_tool_call_is_shown_as_a_card_with_its_status(status: str, word: str, world: World) -> None:
    session = world.running_session()
    tool = {"kind": "tool.call", "tool_call_id": "t", "title": "Read a.py", "status": status}
    ingest_lines(session, {**tool, "content": [{"type": "content", "content": {"type": "text", "text": "line one"}}]})
    card = shown(session)[-1]
    assert "Read a.py" in card
    assert f"{word}</span>" in card
    assert "line one" in card


def test_tool_call_of_a_dead_agent_is_interrupted_not_done(world: World) -> None:
    session = world.running_session()
    ingest_lines(session, {"kind": "tool.call", "tool_call_id": "t", "title": "Push", "status": "in_progress"})
    ingest_lines(session, {"kind": "agent.exited", "exit_code": -9, "expected": False})
    card = shown(session)[-1]
    assert "Interrupted</span>" in card
    assert "Done" not in card


@pytest.mark.parametrize("content", ["text", 7, {"a": 1}, [1, "x", None], [{"content": 3}], [{"text": ["x"]}]])
def test_malformed_tool_call_can_be_shown(content: object, world: World) -> None:
    session = world.running_session()
    line = {"kind": "tool.call", "tool_call_id": "t", "title": None, "status": None}
    ingest_lines(session, {**line, "content": content, "locations": content, "raw_output": content})
    assert "Waiting" in shown(session)[-1]


def test_plan_marks_completed_and_current_steps(world: World) -> None:
    session = world.running_session()
    steps = [{"content": "Read", "status": "completed"}, {"content": "Mend", "status": "in_progress"}]
    ingest_lines(session, {"kind": "plan", "entries": steps})
    plan = " ".join(shown(session)[-1].split())
    assert '<li class="done">Read <span class="unseen">(done)</span></li>' in plan
    assert '<li class="now">Mend' in plan


def test_failed_turn_shows_its_reason(world: World) -> None:
    session = world.running_session()
    failed = {"kind": "turn.failed", "message_id": first_prompt(session).message_id, "code": "boom"}
    ingest_lines(session, {**failed, "message": "The prompt is too long."})
    assert 'class="message error"' in shown(session)[-1]
    assert "The prompt is too long." in shown(session)[-1]


def test_prompt_names_its_author_and_only_ones_own_says_you(world: World, ada: Client) -> None:
    session = world.running_session()
    carol = User.objects.create_user("carol")
    carol.groups.add(world.team)
    client = Client()
    client.force_login(carol)
    page = f"/tasks/{session.task_id}/sessions/{session.id}/"
    assert "<span>You</span>" in ada.get(page).text
    assert "<span>ada</span>" in client.get(page).text
    assert "<span>You</span>" not in client.get(page).text
    assert "<span>ada</span>" in client.get(f"{page}live/?after=0").json()["messages"][0]["html"]
    session.prompts.update(by=None)
    assert "<span>User</span>" in ada.get(page).text


@pytest.mark.parametrize(
    ("editor", "for_ada", "for_carol"),
    [
        ("carol", "You, edited by carol", "ada, edited by you"),
        ("ada", "You", "ada"),
        ("<b>", "You, edited by &lt;b&gt;", ""),
    ],
)
def test_prompt_names_who_edited_it(world: World, ada: Client, editor: str, for_ada: str, for_carol: str) -> None:
    session = world.running_session()
    session.prompts.update(edited_by=editor)
    carol = User.objects.create_user("carol")
    carol.groups.add(world.team)
    client = Client()
    client.force_login(carol)
    assert f"<span>{for_ada}</span>" in ada.get(path_of(session)).text
    assert f"<span>{for_carol}" in client.get(path_of(session)).text


def test_authors_need_one_query(world: World) -> None:
    session, counts = world.running_session(), list[int]()
    shown(session)  # loads the session's owner
    for number in range(2):
        key = f"more-{number}"
        session.prompts.create(message_id=key, text="And this.", state="sending", by=world.ada)
        ingest_lines(session, {"kind": "prompt.accepted", "message_id": key})
        with CaptureQueriesContext(connection) as queries:
            shown(session)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_system_prompts_are_not_shown_as_the_users(world: World) -> None:
    session = world.running_session()
    session.prompts.create(message_id="continue:1", text="Go on.", kind="continue", state="sending")
    ingest_lines(session, {"kind": "prompt.accepted", "message_id": "continue:1"})
    first, second = shown(session)
    assert "<span>You</span>" in first
    assert "Kandev, after an interruption" in second


def test_thought_is_collapsed(world: World) -> None:
    session = world.running_session()
    ingest_lines(session, {"kind": "message.thought", "text": "Hmm."})
    assert "<details" in shown(session)[-1]
    assert "open>" not in shown(session)[-1]


def test_long_growing_message_shows_its_end_until_complete(world: World) -> None:
    session = world.running_session()
    ingest_lines(session, {"kind": "message.agent", "text": "first " + "x" * GROWING_LIMIT + " last"})
    growing = shown(session)[-1]
    assert "first" not in growing
    assert " last" in growing

    ingest_lines(session, {"kind": "turn.completed", "message_id": first_prompt(session).message_id})
    assert "first" in shown(session)[-1]


def test_earlier_messages_are_on_another_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions_app.stream.views.PAGE_SIZE", 2)
    session = world.running_session()
    for number in range(3):
        ingest_lines(session, {"kind": "message.user", "text": f"note {number}"})
    client = Client()
    client.force_login(world.ada)
    newest = client.get(path_of(session))
    assert "note 2" in newest.text
    assert "note 0" not in newest.text
    earlier = client.get(path_of(session), {"before": newest.context["older_than"]})
    assert "note 0" in earlier.text
    assert "note 2" not in earlier.text
    assert client.get(path_of(session), {"before": "x"}).status_code == 404


def test_file_change_of_a_tool_is_shown_as_a_diff(world: World) -> None:
    session = world.running_session()
    diff = {"type": "diff", "path": "a.py", "oldText": "one\ntwo\nthree\n", "newText": "one\n<2>\nthree\n"}
    new = {"type": "diff", "path": "b.py", "oldText": None, "newText": "x\n"}
    ingest_lines(session, {"kind": "tool.call", "tool_call_id": "t", "title": "Edit", "content": [diff, new]})
    html = shown(session)[-1]
    assert '<span class="gone">-two\n</span><span class="added">+&lt;2&gt;\n</span>' in html
    assert '<span class="added">+1</span> <span class="gone">−1</span>' in html
    assert "b.py (new)" in html


def test_command_is_shown_first_and_its_raw_input_is_folded(world: World) -> None:
    session = world.running_session()
    call = {"kind": "tool.call", "tool_call_id": "t", "title": "`make <test>`", "tool_kind": "execute"}
    output = {"type": "content", "content": {"type": "text", "text": "3 passed"}}
    raw_input = {"command": ["bash", "-lc", "make <test>"], "cwd": "/w"}
    ingest_lines(session, {**call, "raw_input": raw_input, "content": [output], "status": "completed"})
    html = shown(session)[-1]
    assert '<span class="prompt" aria-hidden="true">$ </span>make &lt;test&gt;</code>' in html
    assert html.index("make &lt;test&gt;</code>") < html.index("3 passed") < html.index('<details class="raw"')
    assert html.index("bash") > html.index('<details class="raw"')
    assert "in <code>/w</code>" in html
    assert " open" not in html


@pytest.mark.parametrize(("lines", "is_open"), [(3, True), (UNFOLDED_LINES // 2, True), (UNFOLDED_LINES + 1, False)])
def test_short_diff_is_open_and_a_long_one_is_folded(lines: int, is_open: bool, world: World) -> None:
    session = world.running_session()
    diff = {"type": "diff", "path": "a.py", "oldText": None, "newText": "x\n" * lines}
    ingest_lines(session, {"kind": "tool.call", "tool_call_id": "t", "title": "Edit", "content": [diff]})
    html = shown(session)[-1]
    assert (" open data-unfolds>" in html) == is_open
    assert f'<span class="added">+{lines}</span>' in html


def test_steps_of_a_sub_agent_are_inside_the_call_that_started_it(ada: Client, world: World) -> None:
    session = world.running_session()
    call = {"kind": "tool.call", "tool_call_id": "t1", "title": "Explore", "status": "in_progress"}
    step = {**call, "parent_tool_call_id": "t1"}
    ingest_lines(session, call, {**call, "tool_call_id": "t2", "title": "My own"})
    ingest_lines(session, *({**step, "tool_call_id": f"s{number}", "title": f"Step {number}"} for number in range(2)))
    ingest_lines(session, {**step, "tool_call_id": "s3", "parent_tool_call_id": "nobody", "title": "Stray"})
    html = ada.get(path_of(session)).text
    nested = html[html.index('<ol class="nested">') : html.index("My own")]
    assert [title in nested for title in ("Step 0", "Step 1", "Stray")] == [True, True, False]
    assert html.index("Step 1") < html.index("My own") < html.index("Stray")
    assert html.count('<li class="message tool') == 5


def test_plan_shows_its_progress(world: World) -> None:
    session = world.running_session()
    steps = [
        {"content": "Read", "status": "completed"},
        {"content": "Write", "status": "in_progress"},
        {"content": "Tell"},
    ]
    ingest_lines(session, {"kind": "plan", "entries": steps})
    html = shown(session)[-1]
    assert "1 of 3 done" in html
    assert [html.index(f'class="{state}"') for state in ("done", "now", "open")] == sorted(
        html.index(f'class="{state}"') for state in ("done", "now", "open")
    )


def test_turn_usage_is_kept_until_a_new_value_arrives(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, {"kind": "usage", "usage": {"inputTokens": 1200, "outputTokens": 7}})
    ingest_lines(session, {"kind": "usage", "usage": {"used": 50, "size": 200, "strange": {"x": 1}}}, {"kind": "usage"})
    html = ada.get(path_of(session)).text
    for name, value in (("Tokens in", "1,200"), ("Tokens out", "7"), ("Context in use", "25% of 200 tokens")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in html


def test_link_to_a_message_shows_its_surroundings(ada: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions_app.stream.views.PAGE_SIZE", 6)
    monkeypatch.setattr("sessions_app.stream.views.MESSAGES_AFTER_TARGET", 2)
    session = world.running_session()
    for number in range(10):
        tool = {"kind": "tool.call", "tool_call_id": str(number), "status": "completed"}
        ingest_lines(session, {"kind": "message.agent", "text": f"<{number}>"}, tool)
    message = session.messages.filter(role="agent")[3]
    html = ada.get(f"{path_of(session)}?at={message.seq}").text
    assert f'id="m-{message.id}"' in html
    assert "Back to the newest messages" in html
    newest = ada.get(f"{path_of(session)}?at={session.messages.latest('seq').seq}").text
    assert "Back to the newest messages" not in newest
    earlier = ada.get(f"{path_of(session)}earlier/?before={message.seq}").json()
    assert len(earlier["messages"]) == 6
    assert earlier["older_than"] is not None
    assert ada.get(f"{path_of(session)}earlier/?before=x").status_code == 404
