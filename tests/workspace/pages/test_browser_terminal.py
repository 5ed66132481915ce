"""The terminal of a session's page: a real shell that survives a killed server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from tests.pages.browsers import SERVER_AWAY, reported
from tests.pages.people import Place, path_of
from tests.services import require
from tests.waiting import eventually

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def place(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    require("terminal")
    made = Place(tmp_path_factory.mktemp("place"), browser)
    yield made
    made.deployment.close()


def screen(page: Page) -> str:
    """Return the text on the terminal."""
    return str(page.locator(".xterm-rows").inner_text()).replace("\xa0", " ")


def typed(page: Page, words: str) -> None:
    keyboard = page.locator(".xterm-helper-textarea")
    expect(keyboard).to_be_editable()  # not while the scrollback is written: it takes no input then
    keyboard.focus()
    page.keyboard.type(words)
    page.keyboard.press("Enter")


def sees(page: Page, words: str) -> None:
    eventually(lambda: words in screen(page), timeout=60, describe=f"the terminal shows {words!r}")


def clicked(page: Page, words: str, right: int) -> None:
    """Click `right` pixels after the beginning of `words`, once a row that is drawn anew has a place again."""
    found = page.locator(".xterm-rows").get_by_text(words).first
    box = eventually(found.bounding_box, timeout=60, describe=f"{words!r} has a place on the screen")
    assert box is not None
    across, down = box["x"] + right, box["y"] + box["height"] / 2
    page.mouse.move(across, down, steps=3)
    page.mouse.click(across, down)


def test_shell_survives_a_killed_server(place: Place) -> None:
    session = place.start("remember one", "Shells")
    session.wait_for("WAITING_FOR_INPUT")
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        page.get_by_role("tab", name="Terminal").click()
        expect(page.locator(".xterm-rows")).to_be_visible()
        typed(page, "export KEPT=walrus; echo told-$((40+2))")
        sees(page, "told-42")
        typed(page, "printf '\\033[1;31mred\\033[38;2;1;2;3mtrue\\033[0m\\n'; stty size")
        sees(page, "redtrue")
        columns = page.evaluate("document.querySelector('.xterm-rows').children.length")
        assert columns > 5, "the terminal fits its panel"

        place.kill()
        expect(page.get_by_text("Connection lost.")).to_be_visible()
        place.serve()
        expect(page.get_by_text("Connection lost.")).to_be_hidden()
        sees(page, "told-42")
        assert screen(page).count("told-42") == 1, "the scrollback is shown once"
        typed(page, "echo still-$KEPT")
        sees(page, "still-walrus")

        other = visit.tab()
        other.goto(path_of(session))
        other.get_by_role("tab", name="Terminal").click()
        expect(page.get_by_text("The terminal is open in another window")).to_be_visible()
        page.get_by_role("button", name="Use it here").click()
        expect(other.get_by_text("The terminal is open in another window")).to_be_visible()

        page.keyboard.press("F6")
        expect(page.get_by_role("tab", name="Terminal")).to_be_focused()
        typed(page, "exit 3")
        expect(page.get_by_text("The shell has ended with code 3.")).to_be_visible()
        page.get_by_role("button", name="New shell").click()
        typed(page, "echo anew-$((1+1))-$KEPT.")
        sees(page, "anew-2-.")
        assert visit.unexpected(*SERVER_AWAY) == []


def test_reload_types_no_answers_of_the_terminal_into_the_shell(place: Place) -> None:
    session = place.start("remember two", "Queries")
    session.wait_for("WAITING_FOR_INPUT")
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        page.get_by_role("tab", name="Terminal").click()
        expect(page.locator(".xterm-rows")).to_be_visible()
        # The program that asked reads the first answers itself.
        asks = "printf '\\033[c\\033[6n'; head -c 12 | od -c | head -1"
        typed(page, f"stty -echo -icanon min 0 time 250; {asks}; echo read-$((40+2))")
        sees(page, "read-42")
        typed(page, "stty sane -echo; cat -v; echo ended-$((1+1))")
        page.reload()
        page.get_by_role("tab", name="Terminal").click()
        expect(page.locator(".xterm-rows")).to_be_visible()
        sees(page, "read-42")
        typed(page, "mine")
        sees(page, "mine")
        page.keyboard.press("Control+d")
        sees(page, "ended-2")
        after = screen(page).split("read-42")[1]
        assert "^[[" not in after, f"the terminal answered the replay: {after!r}"
        assert visit.unexpected(*SERVER_AWAY) == []


def test_link_in_the_terminal_opens_only_after_its_address_is_confirmed(place: Place) -> None:
    session = place.start("remember three", "Sequences")
    session.wait_for("WAITING_FOR_INPUT")
    with place.visiting() as visit:
        page, lines = visit.open(path_of(session)), list[str]()
        title = page.title()

        def refuse(dialog: Dialog) -> None:
            lines.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", refuse)
        page.get_by_role("tab", name="Terminal").click()
        expect(page.locator(".xterm-rows")).to_be_visible()
        link = "\\033]8;;https://evil.example/path\\033\\\\https://bank.example\\033]8;;\\033\\\\"
        typed(page, f"printf '\\033]0;own\\007\\033]52;c;ZXZpbA==\\007{link} end-'; echo $((40+2))")
        sees(page, "end-42")

        def asked() -> list[str]:
            """A row that is drawn again, as before the next prompt, forgets the link below the mouse: click again."""
            clicked(page, "https://bank.example end-42", right=40)
            return reported(page, lines)

        eventually(asked, timeout=60, describe="the address is shown")
        assert "https://evil.example/path" in lines[0]
        assert len(visit.context.pages) == 1, "nothing was opened"
        assert page.title() == title
        assert page.evaluate("navigator.clipboard.readText().catch(() => '')") != "evil"


COSTLY = {
    "ten million new lines": "\\033[10000000L",
    "deleted lines": "\\033[2147483647M",
    "scrolling": "\\033[2147483647S\\033[2147483647T",
    "tabs": "\\033[2147483647I\\033[2147483647Z",
    "repetition": "x\\033[2147483647b",
    "a number in two pieces": "\\033[21474\\b83647L",
    "bytes that are not printed": "\\177\\177",
    "another background": "\\033]11;rgb:12/34/56\\007\\033]104\\007",
}


def test_output_that_asks_for_much_does_not_freeze_the_page(place: Place) -> None:
    session = place.start("remember four", "Costly output")
    session.wait_for("WAITING_FOR_INPUT")
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        page.get_by_role("tab", name="Terminal").click()
        expect(page.locator(".xterm-rows")).to_be_visible()
        for number, (what, output) in enumerate(COSTLY.items(), 100):
            typed(page, f"printf '{output}\\033[H'; clear; echo {what} end-$(({number}+1))")
            sees(page, f"end-{number + 1}")
        background = page.locator(".xterm-viewport").evaluate("it => getComputedStyle(it).backgroundColor")
        assert background != "rgb(18, 52, 86)", "a program does not change the page's colours"
        assert visit.unexpected() == []


def test_terminal_keeps_few_combining_characters_and_links(place: Place) -> None:
    session = place.start("remember five", "Many marks")
    session.wait_for("WAITING_FOR_INPUT")
    with place.visiting() as visit:
        page, lines = visit.open(path_of(session)), list[str]()

        def dismiss(dialog: Dialog) -> None:
            lines.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", dismiss)
        page.get_by_role("tab", name="Terminal").click()
        expect(page.locator(".xterm-rows")).to_be_visible()
        marks = "clear; printf a; head -c 200000 /dev/zero | sed 's/\\x00/\\xcc\\x81/g'; echo; echo end-$((40+2))"
        typed(page, marks)
        sees(page, "end-42")
        assert screen(page).count("\u0301") <= 16
        link = "\\033]8;;https://evil.example/%s\\007%s\\033]8;;\\007"
        typed(page, f"clear; printf '{link}' $(seq 3000); echo; printf '{link}' a last-$((40+2)); echo")
        sees(page, "last-42")
        clicked(page, "last-42", right=20)
        typed(page, "clear; echo after-$((40+2))")
        sees(page, "after-42")
        assert lines == [], "beyond the limit nothing becomes a link"
