"""The recorded walk: from the first page after ``make run`` to a merged change, on a repository made at random."""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.drills.deployment import Deployment
from tests.executors.repositories import commit, run_git
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import Visit, navigating
from tests.waiting import eventually

pytestmark = pytest.mark.browser
MAX_CLICKS = 15
WORDS = (
    *("anchor", "basket", "copper", "daisy", "ember", "fern", "garden", "harbour", "island", "juniper", "kettle"),
    *("lantern", "meadow", "nettle", "orchard", "pebble", "quarry", "river", "saddle", "thistle", "umbrella", "velvet"),
    *("willow", "yarrow", "zephyr", "bridge", "candle", "feather", "marble", "ribbon", "silver", "timber", "wagon"),
)
"""None of them is an instruction of the demo agent."""


_LISTS_WHAT_IS_THERE = """async () => {
    const { dataset } = document.getElementById("panel-changes");
    const { files } = await (await fetch(`${dataset.review}commit/`)).json();
    const listed = [...document.querySelectorAll("input.select-file")].map((box) => box.dataset.version);
    return files.length > 0 && files.every(({ version }) => listed.includes(version));
}"""
"""Only what was listed is committed, and the list may be older than the lines, which are loaded later."""


@dataclass
class RandomChange:
    """A repository, and what an agent is told to write in it."""

    path: Path
    branch: str
    changed: str
    """A file that the repository has."""
    added: str
    first: str
    wrong: str
    right: str
    """What the changed file, and the added one at first and in the end, are to say."""

    @classmethod
    def make(cls, path: Path, seed: int) -> RandomChange:
        """Make a repository of random files, with no branch checked out."""
        chance = random.Random(seed)

        def word() -> str:
            return chance.choice(WORDS)

        def name() -> str:
            folders = [word() for _ in range(chance.randint(0, 2))]
            return "/".join([*folders, f"{word()}-{chance.randint(1, 99)}"]) + chance.choice((".txt", ".md", ".toml"))

        def sentence() -> str:
            return " ".join(word() for _ in range(chance.randint(2, 8))) + f" {chance.randint(1000, 9999)}"

        branch = chance.choice((word(), f"{word()}/{word()}"))
        path.mkdir(parents=True)
        run_git(path, "init", "--quiet", "--initial-branch", branch)
        names = list(dict.fromkeys(name() for _ in range(chance.randint(3, 7))))
        added = names.pop()
        for each in names:
            (path / each).parent.mkdir(parents=True, exist_ok=True)
            commit(path, each, "".join(f"{sentence()}\n" for _ in range(chance.randint(1, 9))))
        return cls(path, branch, chance.choice(names), added, sentence(), sentence(), sentence())

    def at(self, revision: str, name: str) -> str:
        """Return the text of a file in a commit."""
        return run_git(self.path, "show", f"{revision}:{name}")


class Walker:
    """Somebody who has just started Kandev; counts clicks, and each field that they have to go to."""

    def __init__(self, deployment: Deployment, browser: Browser):
        self.deployment = deployment
        self.visit = Visit(browser, deployment.url, "nobody", viewport={"width": 1280, "height": 800})
        self.page = self.visit.page
        self.clicks = 0

    def log_in(self) -> None:
        """Open the link that ``make run`` prints."""
        output = self.deployment.manage("create_demo")
        link = re.search(r"/login/\S+", output.stdout)
        assert link, output.stderr
        self.visit.open(link[0])
        with navigating(self.page):
            self.page.get_by_role("button", name="Log in").click()

    def click(self, what: Locator, **where: Any) -> None:
        """Click on something in the page."""
        what.click(**where)
        self.clicks += 1

    def follow(self, what: Locator) -> None:
        """Click on something that opens a page."""
        with navigating(self.page):
            self.click(what)

    def fill(self, field: Locator, text: str) -> None:
        """Go to a field, and fill it."""
        field.fill(text)
        self.clicks += 1


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    made.prepare()
    yield made
    made.close()


def test_random_change_is_reviewed_commented_corrected_and_merged_in_a_few_clicks(
    deployment: Deployment, browser: Browser, picture: Callable[[Page, str], None]
) -> None:
    seed = secrets.randbelow(10**9)
    made = RandomChange.make(deployment.data / "demo-repository", seed)
    deployment.serve({})
    walker = Walker(deployment, browser)
    page = walker.page
    try:
        walker.log_in()
        run_git(made.path, "checkout", "--quiet", "--detach")
        _walk(walker, made, picture)
    except Exception as error:
        error.add_note(f"seed {seed}, after {walker.clicks} clicks, on {page.url}")
        raise
    finally:
        walker.visit.context.close()
    assert walker.clicks <= MAX_CLICKS
    assert walker.visit.unexpected() == []


def _walk(walker: Walker, made: RandomChange, picture: Callable[[Page, str], None]) -> None:
    page = walker.page
    walker.click(page.locator("summary", has_text="New task"))
    walker.fill(page.get_by_label("Title"), f"Write about {made.first.split()[0]}")
    walker.fill(page.get_by_label("Description"), f"write {made.changed} {made.first}\nwrite {made.added} {made.wrong}")
    walker.follow(page.get_by_role("button", name="Create and start"))
    expect(page.locator(".message.agent").last).to_contain_text(f"I wrote {made.added}.")
    expect(page.get_by_role("link", name="What this turn changed")).to_be_visible()
    picture(page, "walk-1-change")

    walker.click(page.get_by_role("tab", name="Changes"))
    review = page.locator(".review")
    article = review.locator("article", has=page.get_by_role("heading", name=made.added, exact=True))
    line = article.locator("[data-side=new][data-line='1']")
    expect(line).to_contain_text(made.wrong)
    walker.click(line, position={"x": 5, "y": 5})  # its number
    form = article.locator("form")
    expect(form.get_by_label("Comment", exact=True)).to_be_focused()
    page.keyboard.insert_text(f"Say this instead:\nwrite {made.added} {made.right}")
    walker.click(form.get_by_role("button", name="Add comment"))
    expect(page.locator("#comments")).to_contain_text("Comments to send (1)")
    picture(page, "walk-2-comment")
    walker.click(page.locator("#comments").get_by_role("button", name="Send 1 comment"))

    expect(page.locator("#messages .turn-end")).to_have_count(2)

    def shows_the_correction() -> bool:
        # Lines are loaded when they come into view, and the list is made anew when the agent has written.
        article.evaluate("shown => shown.scrollIntoView()")
        return made.right in article.inner_text()

    eventually(shows_the_correction)
    eventually(lambda: page.evaluate(_LISTS_WHAT_IS_THERE))
    walker.click(article.get_by_label(f"Viewed {made.added}"))
    walker.fill(page.get_by_label("Commit selected files"), "Say it right")
    walker.click(page.get_by_role("button", name="Commit", exact=True))
    expect(page.locator("#changes").get_by_role("status")).to_contain_text("Say it right")

    walker.follow(page.locator("#panel-changes").get_by_role("link", name="Merge…"))
    assert accessibility_problems(page) == []
    confirm = page.get_by_role("button", name=f" into {made.branch}")
    expect(confirm).to_be_visible()
    before = run_git(made.path, "rev-parse", made.branch)
    walker.follow(confirm)
    expect(page.locator("#part-intents .pill")).to_have_text("Done")
    picture(page, "walk-3-merged")
    assert made.at(made.branch, made.changed) == made.first
    assert made.at(made.branch, made.added) == made.right
    assert run_git(made.path, "rev-parse", f"{made.branch}^1") == before
