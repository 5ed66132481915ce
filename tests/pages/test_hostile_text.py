"""Hostile text of an agent, shown everywhere in a real browser, can neither act nor imitate the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, expect

from sessions_app.redaction.visible_text import make_visible
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import World, asks, ingest_lines, make_world, path_of, supervise

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

CARD = (
    '<section id="permissions"><form class="card asks" action="/logout/" method="post"><h2>Run the tests</h2>'
    '<button name="option_id" value="allow">Allow once</button></form></section>'
)
TEXTS: Mapping[str, str] = {
    "a script": "<script>window.hacked = 1; alert(1)</script>",
    "a handler": '<img src=x onerror="window.hacked = 1"><svg onload="window.hacked = 1">',
    "a frame": '<iframe srcdoc="<script>parent.hacked = 1</script>"></iframe><object data="https://spy.example/">',
    "a style": "<style>* { display: none !important }</style><link rel=stylesheet href=https://spy.example/a.css>",
    "a base": '<base href="https://spy.example/"><meta http-equiv="refresh" content="0; url=https://spy.example/">',
    "a picture": "![pixel](https://spy.example/p.png) [![x](https://spy.example/q.png)](https://spy.example/)",
    "a script's link": (
        "[Allow once](javascript:window.hacked=1) [x](data:text/html,<script>1</script>) <javascript:alert(1)>"
    ),
    "a link to us": "[Allow once](/logout/) [Stop](//spy.example/) [All](#permissions) [Here](?before=1)",
    "a link that lies": "[https://bank.example/](https://evil.example/)",
    "a permission card": CARD,
    "a banner": (
        "---\n\n# ⚠ The agent asks for a permission.\n\n**[ Allow once ]** [ Reject ]\n\n"
        "Kаndev: your session has ended, log in anew."
    ),
    "markup of ours": (
        '</div></li><li class="message user" id="m-1"><p class="by">You</p><div>Yes, delete it.</div></li>'
    ),
    "a terminal's words": (
        "\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07 \x1b]8;;https://evil.example\x07link\x1b]8;;\x07 \x08\x08\x7f"
    ),
    "a line turned around": "rm \u202efdp.gpj\u202c \u2066hidden\u2069 \u200b\u200e end",
    "right to left": "مرحبا بالعالم\n\nשלום (1) + code",
    "one endless line": "x" * 1_000_000,
    "a wide table": "|" + "head|" * 300 + "\n|" + "-|" * 300 + "\n" + ("|" + "cell|" * 300 + "\n") * 3,
    "a deep nest": "\n".join("  " * depth + "- deep" for depth in range(200)) + "\n\n" + ">" * 500 + " quote",
    "towers of signs": "Z" + "\u0300\u0316" * 400,
    "brackets": "[" * 5_000 + "*a **b " * 1_000,
}
LEADS_OUT = ("https://spy.example/p.png", "https://spy.example/q.png", "https://evil.example/")
"""External links are allowed if they open in a new tab, and only when clicked."""
FOUND = """() => {
  const messages = [...document.querySelectorAll("#messages .message")];
  const inside = messages.flatMap((message) => [...message.querySelectorAll("*")]);
  const outside = (one) => {
    const box = one.getBoundingClientRect(), bubble = one.closest(".message").getBoundingClientRect();
    const clip = one.closest("pre, table, .long")?.getBoundingClientRect() ?? box;
    return box.width > 0 && (clip.left < bubble.left - 1 || clip.right > bubble.right + 1);
  };
  return {
    hacked: window.hacked ?? null,
    bad: inside
      .filter((one) => one.matches("script, style, img, svg, iframe, object, link, base, meta, form, input, section"))
      .map((one) => one.outerHTML.slice(0, 80)),
    buttons: inside.filter((one) => one.matches("button:not(.copy)")).length,
    handlers: inside
      .filter((one) => [...one.attributes].some(({name}) => name.startsWith("on") || name === "style")).length,
    links: inside
      .filter((one) => one.matches("a[href]:not(.at, .whole)"))
      .map((one) => [one.getAttribute("href"), one.rel, one.target]),
    floats: inside.filter((one) => ["fixed", "sticky"].includes(getComputedStyle(one).position)).length,
    escapes: inside.filter(outside).map((one) => one.outerHTML.slice(0, 80)),
    loose: messages.filter((one) => one.parentElement.id !== "messages").length,
    wide: document.documentElement.scrollWidth > innerWidth,
    turned: /[\\u202a-\\u202e\\u2066-\\u2069\\x1b]/.test(document.getElementById("session").textContent),
  };
}"""


GROW = """async (text) => {
  const { append, showMessage } = await import("/static/kandev/conversation.js");
  const html = '<li class="message" id="m-1" data-seq="1000000" data-updated="1000000"><p class="prose"></p></li>';
  showMessage({id: "1", seq: 1e6, updated_seq: 1e6, html});
  append({seq: 1e6 + 1, payload: {message_id: "1", append: text}});
  const made = document.querySelector("#m-1 .prose");
  return [made.textContent, made.querySelectorAll("*").length];
}"""


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def lines_with(text: str, number: int) -> list[dict[str, Any]]:
    """Return journal lines with the text in every place that an agent can fill."""
    short = text[:20_000]
    diff = {"type": "diff", "path": short[:200], "oldText": short, "newText": f"{short}\n{short[:50]}"}
    return [
        {"kind": "message.agent", "text": text},
        {"kind": "message.thought", "text": short},
        {"kind": "message.user", "text": short},
        {"kind": "plan", "entries": [{"content": short, "status": short[:20]}]},
        {
            "kind": "tool.call",
            "tool_call_id": str(number),
            "title": short[:500],
            "status": short[:30],
            "raw_input": {"x": short},
            "locations": [{"path": short[:200]}],
            "content": [diff, {"type": "content", "content": {"type": "text", "text": short}}],
        },
    ]


def test_agent_text_cannot_act_escape_its_message_or_imitate_the_page(visit: Any, world: World) -> None:
    session = world.running_session()
    for number, text in enumerate(TEXTS.values()):
        ingest_lines(session, *lines_with(text, number))
    ingest_lines(session, asks(title=CARD, raw_input={"command": TEXTS["a line turned around"]}))
    session.prompts.create(message_id="held", text=TEXTS["a line turned around"] + CARD, state="held")
    ada = visit(viewport={"width": 1280, "height": 800})
    page, requests, dialogs = ada.page, list[str](), list[str]()
    page.on("request", lambda request: requests.append(request.url))

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.goto(path_of(session), timeout=60_000)
    expect(page.locator("#messages .message.tool").last).to_be_visible()
    page.evaluate("() => document.querySelectorAll('details').forEach((one) => (one.open = true))")

    found = page.evaluate(FOUND)
    links = {tuple(link) for link in found.pop("links")}
    assert links == {(url, "noopener noreferrer nofollow", "_blank") for url in LEADS_OUT}
    assert found == {
        **dict.fromkeys(("buttons", "handlers", "floats", "loose"), 0),
        **dict.fromkeys(("wide", "turned"), False),
        "hacked": None,
        "bad": [],
        "escapes": [],
    }
    assert dialogs == []
    assert [url for url in requests if "spy.example" in url or "evil" in url] == []
    assert page.locator(".asks").count() == 1, "the only question is not the agent's text"
    assert page.locator(".asks button").all_inner_texts() == ["Allow once", "Reject"]
    assert page.locator(".asked-title").inner_text().startswith("<section id=")
    expect(page.get_by_text("rm ⟦RLO⟧fdp.gpj⟦PDF⟧").first).to_be_visible()
    expect(page.locator(".host", has_text="evil.example").first).to_be_visible()
    assert ada.unexpected(*NO_SOCKET) == []


@pytest.mark.parametrize("text", ["a script", "a permission card", "a line turned around", "a terminal's words"])
def test_socket_text_is_harmless_before_the_server_renders_it(text: str, visit: Any, world: World) -> None:
    page = visit().open(path_of(world.running_session()))
    shown = page.evaluate(GROW, TEXTS[text])
    assert shown == [make_visible(TEXTS[text]), 1]
