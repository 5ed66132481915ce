"""A new user's path from the first start to a turn of a real agent, and a login in the terminal of a page."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from executors_app.plugins import agent_type
from tests.drills.deployment import Deployment
from tests.pages.browsers import Visit, navigating
from tests.real_agents.model_server import running_model
from tests.services import CODEX, CODEX_ACP, NODE, ROOT, require
from tests.waiting import eventually

pytestmark = pytest.mark.browser
MAX_CLICKS = 12
TASK = "Read this repository and say what it does."
CODEX_CONFIG = """\
model = "mock"
model_provider = "mock"
approval_policy = "never"
check_for_update_on_startup = false
[model_providers.mock]
name = "Mock"
base_url = "{url}"
wire_api = "responses"
env_key = "{key}"
[analytics]
enabled = false
"""


class Newcomer:
    """A user who has started Kandev with its demo for the first time; counts clicks and filled fields."""

    def __init__(self, home: Path, browser: Browser):
        self.programs = home / "programs"
        self.programs.mkdir()
        self.deployment = Deployment(home)
        self.deployment.env["PATH"] = f"{self.programs}:/usr/local/bin:/usr/bin:/bin"
        self.deployment.prepare()
        self.deployment.serve({})
        self.visit = Visit(browser, self.deployment.url, "nobody")
        self.page = self.visit.page
        self.clicks = 0

    def log_in(self) -> None:
        """Open the login link that the first start prints."""
        output = self.deployment.manage("create_demo")
        link = re.search(r"/login/\S+", output.stdout)
        assert link, output.stderr
        self.visit.open(link[0])
        with navigating(self.page):
            self.click(self.page.get_by_role("button", name="Log in"))

    def install(self, name: str, text: str) -> None:
        """Put a program on Kandev's PATH."""
        program = self.programs / name
        program.write_text(text)
        program.chmod(0o755)

    def click(self, what: Locator) -> None:
        """Click on something."""
        what.click()
        self.clicks += 1

    def press(self, name: str, role: Any = "button") -> None:
        """Click on a button or link with exactly this name, which opens a page."""
        with navigating(self.page):
            self.click(self.page.get_by_role(role, name=name, exact=True))

    def fill(self, label: str, text: str) -> None:
        """Fill a field."""
        self.page.get_by_label(label).fill(text)
        self.clicks += 1

    def expect_test(self, result: str) -> None:
        """Wait for the result of the test on the page."""
        expect(self.page.locator("#part-test .pill")).to_have_text(result)


@pytest.fixture
def newcomer(browser: Browser, tmp_path: Path) -> Iterator[Newcomer]:
    made = Newcomer(tmp_path, browser)
    yield made
    made.visit.context.close()
    made.deployment.close()


def test_newcomer_reaches_a_turn_of_a_real_agent_in_a_few_clicks(newcomer: Newcomer) -> None:
    require("codex-acp")
    kind = agent_type("codex")
    visitor, home = newcomer, newcomer.deployment.home
    with running_model() as model:
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text(CODEX_CONFIG.format(url=model.url, key=kind.key))
        visitor.log_in()
        visitor.press("Choose an agent", "link")
        visitor.press(f"Set up {kind.title}", "link")
        expect(visitor.page.get_by_text(kind.install)).to_be_visible()
        expect(visitor.page.get_by_role("button", name="Test", exact=True)).to_be_disabled()
        visitor.install(kind.argv[0], f'#!/bin/sh\nCODEX_PATH={CODEX} exec {NODE} {CODEX_ACP} "$@"\n')
        visitor.press("Check again", "link")
        visitor.click(visitor.page.get_by_text("Use an API key"))
        visitor.fill("Key", "a-dummy-key")
        visitor.press("Store the key")
        visitor.press("Test")
        visitor.expect_test("Passed")
        visitor.fill("Path of a git repository on Kandev’s machine", str(visitor.deployment.repository))
        visitor.press("Add the repository")
        visitor.page.get_by_label("What should Codex do?").fill(TASK)
        visitor.press("Start")
        expect(visitor.page.locator(".message.agent > :is(.prose, .as-written)").last).to_contain_text("ok")
        assert any(TASK in text for text in model.user_texts), "the model has received the task"
    assert visitor.clicks + 1 <= MAX_CLICKS, "sending the prefilled prompt is one more click"
    assert visitor.visit.unexpected() == []


def test_login_on_the_page_sends_the_waiting_prompt(newcomer: Newcomer) -> None:
    require("terminal")
    kind, visitor = agent_type("codex"), newcomer
    agent = ROOT / "tests" / "support" / "logged_out_agent.py"
    assert kind.login == f"{kind.argv[0]} cli login", "the adapter brings its own program, which is not on PATH"
    login = '[ "$1" = cli ] && echo Enter the code. && read code && touch "$HOME/logged-in" && exit'
    visitor.install(kind.argv[0], f'#!/bin/sh\n{login}\nPYTHONPATH={ROOT} exec {sys.executable} {agent} "$@"\n')
    visitor.log_in()
    visitor.visit.open(f"/agents/{kind.name}/")
    visitor.press("Test")
    visitor.expect_test("Failed")
    visitor.visit.open(f"/agents/{kind.name}/")
    visitor.press("Log in", "link")
    command = visitor.page.locator("[data-types]")
    command.wait_for()
    shown = command.locator("code").inner_text()
    command.click()
    screen = visitor.page.locator(".xterm-rows")
    eventually(lambda: shown in screen.inner_text().replace("\xa0", " ").replace("\n", ""), timeout=60)
    visitor.page.keyboard.press("Enter")
    expect(screen).to_contain_text("Enter the code.")
    visitor.page.keyboard.type("1234\n")
    expect(visitor.page.locator("#terminal .terminal-notes")).to_contain_text("The login has ended.")
    expect(visitor.page.locator(".message.agent > :is(.prose, .as-written)").last).to_contain_text(
        "Hello from the demo agent."
    )
    assert visitor.visit.unexpected() == []
