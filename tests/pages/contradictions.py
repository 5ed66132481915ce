"""Compare what all pages show about the same sessions, and collect the contradictions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from playwright.sync_api import Locator, Page

from sessions_app.pages.labels import receipt_kind_label
from tests.drills.deployment import Session
from tests.pages.people import path_of, pill
from tests.pages.routes import PAGE_ROUTES
from tests.rights.matrix import PAGES
from tests.waiting import eventually

ROUTES = [route for route in PAGE_ROUTES if not route.endswith("/members/<int:user_id>/")]
"""All pages but that of a member, which only the team's admins open."""
ITEMS_TO_REVIEW = {"Memory lost", "Memory unproven", "Review needed"}
"""Inbox items that are resolved once they were seen."""
WITHOUT_RECEIPT: Final = ("failed", "skipped", "under way")
"""Results of sweep rows for which no receipt was written."""


@dataclass
class SessionPageState:
    """What a session's own page shows about it."""

    state: str
    executor: str
    agent: str
    continuity: str
    wants: list[str] = field(default_factory=list)
    """The inbox items about it."""
    needs: bool = False
    """Whether an inbox item about it requires an action."""


@dataclass
class Walk:
    """One walk through all pages; contradictions are collected in ``found``."""

    page: Page
    sessions: Sequence[Session]
    ids: Mapping[str, str]
    """The ids in URLs: of a run, its workflow, a sweep, a sweep request and a team."""
    found: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names |= {
            session.id: session.deployment.api("GET", f"tasks/{session.task_id}/")["title"] for session in self.sessions
        }

    def go(self, path: str) -> Page:
        """Open a page that must exist."""
        answer = self.page.goto(path)
        if answer is None or answer.status != 200:
            self.found.append(f"{path} answered {answer.status if answer else 'nothing'}")
        return self.page

    def compare(self, what: str, *value: object) -> None:
        """Record a contradiction if two values differ."""
        if len(set(value)) > 1:
            self.found.append(f"{what}: {' / '.join(map(str, value))}")

    def compare_of(self, session: Session, what: str, *value: object) -> None:
        """Compare two values that describe one session."""
        self.compare(f"{self.names[session.id]}: {what}", *value)

    def add(self, session: Session, what: str) -> None:
        """Record a problem with one session."""
        self.found.append(f"{self.names[session.id]}: {what}")

    def everything(self) -> str:
        """Visit every page and compare it with others; return one line for each contradiction."""
        states = {session.id: self._of_session(session) for session in self.sessions}
        self._attention(states)
        self._board(states)
        self._executors(states)
        self._sweeps()
        self._run()
        self._counts()
        self._every_page()
        return "\n".join(self.found)

    def _of_session(self, session: Session) -> SessionPageState:
        page = self.go(path_of(session))
        state, executor, agent = (_text(pill(page, name)) for name in ("Session", "Executor", "Agent"))
        continuity = ""  # a first start continues nothing, and has no pill
        if pill(page, "Continuity").count():
            continuity = _text(pill(page, "Continuity"))
        page_state = SessionPageState(state, executor, agent, continuity)
        shown, logged = page.locator(".message.user").count(), len([one for one in session.events() if _is_prompt(one)])
        self.compare_of(session, "prompts on its page, in its log", shown, logged)
        offers_resume = page.get_by_role("button", name="Resume").count() > 0
        if offers_resume and page_state.agent in {"Working", "Alive", "Idle"}:
            self.add(session, f"Resume is offered beside an agent that is {page_state.agent}")
        page = self.go(f"{path_of(session)}timeline/")
        if page_state.continuity and page_state.continuity not in page.locator(".timeline").inner_text():
            self.add(session, f"the timeline does not tell {page_state.continuity!r}")
        if "dismissed" in page.locator(".timeline").inner_text().lower():
            self.add(session, "nobody dismissed anything, but the timeline says so")
        page = self.go(f"/tasks/{session.task_id}/")
        self.compare(
            f"{self.names[session.id]}: state on its page, on its task's", page_state.state, _first_chip(page, session)
        )
        return page_state

    def _attention(self, states: dict[str, SessionPageState]) -> None:
        page = self.go("/attention/")
        badge = _number(page.locator("#attention-count"))
        new = page.locator(".need:not(details.seen .need)")
        counted = sum(
            int(re.findall(r"\d+", text)[0]) for text in page.locator(".inbox-summary strong").all_inner_texts()
        )
        self.compare("Inbox: badge, sentence, rows", badge, counted, new.count())
        for session_id, one in states.items():
            rows = page.locator(".need", has=page.locator(f"a.title[href*='{session_id}']"))
            one.wants = [(row.locator(".head .pill").text_content() or "") for row in rows.all()]
            one.needs = not ITEMS_TO_REVIEW.issuperset(one.wants)

    def _board(self, states: dict[str, SessionPageState]) -> None:
        page = self.go("/")
        for column in page.locator(".column").all():
            count, cards = _number(column.locator(".count")), column.locator("li.task").count()
            self.compare(f"board, {column.locator('h2').inner_text()}: count, cards", count, cards)
        for session in self.sessions:
            one = states[session.id]
            self.compare(
                f"{self.names[session.id]}: state on its page, on the board", one.state, _first_chip(page, session)
            )
        since = page.locator(".since")
        if since.count():
            links = since.locator(".needy a").count()
            self.compare("since the restart: who needs you, links", _number(since.locator(".needy strong")), links)
        page = self.go("/?needs=1")
        for session in self.sessions:
            row = page.locator("li.needy", has=page.locator(f"a[href*='{session.id}']"))
            shown, chips = row.count() > 0, [one.inner_text() for one in row.locator(".pill").all()]
            one = states[session.id]
            what = f"needs somebody on the board {chips}, in the inbox {one.wants}"
            self.compare_of(session, what, shown, one.needs)

    def _executors(self, states: dict[str, SessionPageState]) -> None:
        page = self.go("/executors/")
        for session in self.sessions:
            row = page.locator(".rows > li", has=page.locator(f"a[href$='/sessions/{session.id}/']"))
            if row.count():
                label = _text(row.locator(".pill").first)
                self.compare(
                    f"{self.names[session.id]}: executor on its page, among all", states[session.id].executor, label
                )
        live = page.locator(".rows.places .meta", has_text="live").first
        rows = page.locator("section[aria-labelledby=running-title] .rows > li")
        up = [one for one in rows.all() if _text(one.locator(".pill").first) in {"Ready", "Starting", "Reconnecting"}]
        self.compare("executors: live in the place, rows that are up", _number(live), len(up))

    def _run(self) -> None:
        """Compare the run on its page, in the list of workflows, on its workflow's page and in the API."""
        run, workflow = self.ids["run_id"], self.ids["workflow_id"]
        page = self.go(f"/workflows/runs/{run}/")
        state = page.locator("#state-title .pill").first.inner_text()
        nodes = [one.inner_text() for one in page.locator("#node-detail ~ section ol.rows > li > .pill").all()]
        self.compare("run: nodes that run, a run that does", "Running" in nodes, state == "Running")
        shown = self.go("/workflows/").locator(f"a.pill[href$='/runs/{run}/']").first.inner_text()
        listed = self.go(f"/workflows/{workflow}/").locator("li", has=page.locator(f"a[href$='/runs/{run}/']"))
        self.compare(
            "run: on its page, in the list, under its workflow", state, shown.split(":")[0].strip(), _text(listed)
        )
        reported = self.sessions[0].deployment.api("GET", f"workflow-runs/{run}/")["state"]
        self.compare("run: on its page, to programs", state.lower(), reported)

    def _counts(self) -> None:
        """Compare the numbers of sessions and running agents wherever they are shown."""
        running = self.go("/executors/").locator("section[aria-labelledby=running-title] .rows > li")
        up = [one for one in running.all() if _text(one.locator(".pill").first) in {"Ready", "Starting"}]
        notice = self.go("/restart/").locator("section[aria-labelledby=restart-title] .none")
        self.compare("agents that are up: executors, the page of restarts", len(up), _number(notice))
        texts = self.go("/agents/").locator("main").inner_text()
        counted = sum(map(int, re.findall(r"(\d+) sessions? in your teams", texts)))
        stored = self.sessions[0].deployment.rows("SELECT id FROM task_sessions")
        self.compare("sessions: of all profiles, stored", counted, len(stored))

    def _every_page(self) -> None:
        """Check that every page exists and shows the inbox's count in its navigation."""
        first = self.sessions[0]
        # On a busy machine its prompt may not be delivered yet.
        messages = eventually(
            lambda: first.deployment.api("GET", f"{first.path}/messages/")["results"],
            timeout=60,
            describe="the first session has a message",
        )
        entry = messages[0]["id"]
        names = {**self.ids, "task_id": first.task_id, "session_id": first.id, "entry_id": entry, "name": "demo"}
        badges = {}
        for route in ROUTES:
            query = PAGES[route]["get"].query
            path = "/" + re.sub(r"<\w+:(\w+)>", lambda found: names[found[1]], route) + (f"?{query}" if query else "")
            badges[path] = _number(self.go(path).locator("#attention-count"))
        if len(set(badges.values())) > 1:
            self.found.append(f"what needs you, by page: {badges}")

    def _sweeps(self) -> None:
        page = self.go("/sweeps/")
        links = page.locator("ol.sweeps > li > p > a:first-child").all()
        sweeps = [one.get_attribute("href") or "" for one in links]
        for sweep in sweeps[:3]:
            page = self.go(sweep)
            pills = [
                (one.get_attribute("href") or "", one.inner_text()) for one in page.locator(".card .counts a").all()
            ]
            for href, text in pills:
                if sweep in href:
                    rows = self.go(href).locator("tbody tr").count()
                    self.compare(f"{sweep}: {text}, rows under it", int(text.split()[0]), rows)
        page = self.go(sweeps[0]) if sweeps else page
        for session in self.sessions:
            row = page.locator("tbody tr", has=page.locator(f"a[href$='/sessions/{session.id}/']"))
            if row.count() and (receipt := row.locator("td:nth-child(4) .pill")).count():
                there, kinds = _text(receipt), [receipt_kind_label(one["kind"]).text for one in session.receipts()]
                if there not in {*kinds, *WITHOUT_RECEIPT}:
                    self.found.append(
                        f"{self.names[session.id]}: the last sweep tells {there}, its receipts are {kinds}"
                    )


def _is_prompt(event: Mapping[str, Any]) -> bool:
    return bool(event["name"] == "session.message.added" and event["payload"]["role"] == "user")


def _text(place: Locator) -> str:
    """Return the text of the pill in an element, or all of its text."""
    inner = place.locator(".pill")
    return (inner.first if inner.count() else place).inner_text().strip()


def _first_chip(page: Page, session: Session) -> str:
    row = page.locator("li", has=page.locator(f"> a[href$='/sessions/{session.id}/']")).last
    return row.locator(".pill").first.inner_text().strip()


def _number(place: Locator) -> int:
    found = re.search(r"\d+", place.first.inner_text()) if place.count() else None
    return int(found[0]) if found else 0
