"""The actions that each prompt state allows, in the API and on the page."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from sessions_app.kernel.rules.states import PromptState
from sessions_app.models import Intent, Prompt, Turn
from tests.api.world import World, prompt

NAME: Final = "caller/1"
REFUSED: Final = (409, "conflict")
ACTIONS: Final = ("resend", "continue", "dismiss", "withdraw", "post again", "post another text")

TABLE: Final[dict[str, tuple[Any, ...]]] = {
    # state          resend   continue  dismiss  withdraw  post again              post another text
    "queued": (REFUSED, REFUSED, REFUSED, 204, 200, REFUSED),
    "sending": (REFUSED, REFUSED, REFUSED, REFUSED, 200, REFUSED),
    "accepted": (REFUSED, REFUSED, REFUSED, REFUSED, 200, REFUSED),
    "delivered": (REFUSED, REFUSED, REFUSED, REFUSED, 200, REFUSED),
    "done": (REFUSED, REFUSED, REFUSED, REFUSED, 200, REFUSED),
    "held": (202, REFUSED, 200, REFUSED, (409, "prompt_in_doubt"), (409, "prompt_in_doubt")),
    "interrupted": (202, 202, 200, REFUSED, 200, REFUSED),
    "dismissed": (REFUSED, REFUSED, 200, REFUSED, 200, REFUSED),
    "withdrawn": (REFUSED, REFUSED, REFUSED, REFUSED, 200, REFUSED),
}
AFTER: Final = {"resend": "dismissed", "continue": "dismissed", "dismiss": "dismissed", "withdraw": "withdrawn"}
CASES: Final = [
    (state, action, answer) for state, row in TABLE.items() for action, answer in zip(ACTIONS, row, strict=True)
]


@pytest.fixture
def ledger(world: World) -> World:
    """Return a session with a running agent that received this prompt."""
    now = timezone.now()
    Turn.objects.create(session=world.session, message_id=NAME, state="interrupted", started_at=now, ended_at=now)
    world.mark_running()
    Intent.objects.update(done_at=now)
    return world


def request_over_api(world: World, api: APIClient, action: str) -> Any:
    if action == "withdraw":
        return api.delete(world.url(f"prompts/{NAME}/"))
    if action.startswith("post"):
        text = "Paint it green" if action == "post again" else "Paint it red"
        return api.post(world.url("prompt/"), {"message_id": NAME, "text": text}, format="json")
    return api.post(world.url(f"prompts/{NAME}/{action}/"))


def request_on_page(world: World, action: str) -> Any:
    browser, base = (
        Client(headers={"Accept": "application/json"}),
        f"/tasks/{world.task.id}/sessions/{world.session.id}",
    )
    browser.force_login(world.member)
    if action.startswith("post"):
        text = "Paint it green" if action == "post again" else "Paint it red"
        return browser.post(f"{base}/prompt/", {"message_id": NAME, "text": text})
    return browser.post(f"{base}/{action}/", {"message_id": NAME})


def prompt_states() -> list[tuple[str, str]]:
    return list(Prompt.objects.order_by("id").values_list("message_id", "state"))


def status_and_code(answer: Any) -> Any:
    return (answer.status_code, answer.json()["code"]) if answer.status_code == 409 else answer.status_code


def check(state: str, action: str, expected: Any) -> None:
    """Check that a refusal changed nothing, and that a success settled the prompt and queued at most one more."""
    rows = prompt_states()
    if isinstance(expected, tuple) or action.startswith("post"):
        assert rows == [(NAME, state)]
    else:
        assert rows[0] == (NAME, AFTER[action])
        assert [left for _, left in rows[1:]] == (["queued"] if action in ("resend", "continue") else [])


def test_table_has_every_prompt_state() -> None:
    assert set(TABLE) == {state.value for state in PromptState}


@pytest.mark.parametrize(("state", "action", "answer"), CASES)
def test_api_allows_each_action_only_in_its_prompt_states(
    ledger: World, api: APIClient, state: str, action: str, answer: Any
) -> None:
    prompt(ledger.session, state, NAME)
    assert status_and_code(request_over_api(ledger, api, action)) == answer
    check(state, action, answer)


@pytest.mark.parametrize(("state", "action", "answer"), CASES)
def test_page_allows_each_action_only_in_its_prompt_states(ledger: World, state: str, action: str, answer: Any) -> None:
    prompt(ledger.session, state, NAME)
    assert status_and_code(request_on_page(ledger, action)) == (answer if isinstance(answer, tuple) else 200)
    check(state, action, answer)


@pytest.mark.parametrize("state", sorted(TABLE))
def test_page_offers_exactly_the_accepted_actions(ledger: World, state: str) -> None:
    prompt(ledger.session, state, NAME)
    browser = Client()
    browser.force_login(ledger.member)
    page = browser.get(f"/tasks/{ledger.task.id}/sessions/{ledger.session.id}/").content.decode()
    taken = {action for action, answer in zip(ACTIONS[:4], TABLE[state], strict=False) if not isinstance(answer, tuple)}
    offered = {action for action in ACTIONS[:4] if f"/{action}/" in page}
    assert offered == (set() if state == "dismissed" else taken)
