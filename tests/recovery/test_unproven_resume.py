"""A conversation that an agent claims but does not show is never verified; if it can replay, it is a mismatch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from executors_app.models import AgentCapability
from sessions_app.models import TaskSession
from tests.agents.scripts import Action, Script, agent, chunk, error, result
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.native_resume import LAST_REQUEST, TOKEN, Resume

pytestmark = pytest.mark.django_db


def load(*actions: Action, version: str = "1.0", name: str = "hermes") -> Script:
    return agent(load=True, name=name, version=version, session_load=[*actions, result({})])


REPLAYS = (chunk("user", LAST_REQUEST), chunk("agent", "Done."))


def receipt_of(session: TaskSession) -> tuple[str, str]:
    receipt = session.receipts.first()
    assert receipt is not None
    return receipt.kind, receipt.verified


def items(session: TaskSession) -> Mapping[str, Any]:
    """Return the open attention items by kind."""
    return {item.kind: item for item in session.attention.filter(resolved_at=None)}


def test_empty_load_stays_unproven_after_a_turn(tmp_path: Path) -> None:
    session = Resume(tmp_path, "custom_acp").run(load())
    assert receipt_of(session) == ("loaded", "unproven")

    journal = Journal("epoch-2")
    ingest(session, [*journal.turn_begins("p2"), *journal.says("Hello!"), journal.completes("p2")], lease=None)

    assert receipt_of(session) == ("loaded", "unproven")


def test_agent_that_forgets_is_unproven(tmp_path: Path) -> None:
    session = Resume(tmp_path, "custom_acp").run("forgets")
    assert receipt_of(session) == ("loaded", "unproven")


def test_empty_load_of_an_agent_known_to_replay_is_a_mismatch(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "custom_acp")
    assert receipt_of(resume.run(load(*REPLAYS))) == ("loaded", "replay")

    session = resume.run(load())

    assert receipt_of(session) == ("failed", "none")
    assert (session.error_code, resume.token_outcome()) == ("context_mismatch", "kept")


def test_replay_under_another_profile_proves_nothing_about_this_one(tmp_path: Path) -> None:
    Resume(tmp_path, "custom_acp").run(load(*REPLAYS))
    session = Resume(tmp_path, "amp").run(load())
    assert (receipt_of(session), session.error_code) == (("loaded", "unproven"), "")


@pytest.mark.parametrize("other", [{"version": "2.0"}, {"name": "openhands"}])
def test_replay_of_one_agent_is_not_expected_of_another(other: Mapping[str, str], tmp_path: Path) -> None:
    resume = Resume(tmp_path, "custom_acp")
    resume.run(load(*REPLAYS))
    assert receipt_of(resume.run(load(**other))) == ("loaded", "unproven")


def test_agent_without_a_name_is_not_recognised(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "custom_acp")
    resume.run(load(*REPLAYS, name="", version=""))
    assert receipt_of(resume.run(load(name="", version=""))) == ("loaded", "unproven")


def test_replay_during_a_resume_is_compared_as_in_a_load(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "custom_acp")
    session = resume.run(agent(resume=True, session_resume=[*REPLAYS, result({})]))
    assert receipt_of(session) == ("resumed", "replay")
    session = resume.run(agent(resume=True, session_resume=[chunk("user", "paint the shed"), result({})]))
    assert session.error_code == "context_mismatch"


def test_unproven_conversation_has_an_inbox_item_until_it_is_proven(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "custom_acp")
    item = items(resume.run(load()))["unproven"]
    assert "not proven" in item.what
    assert TOKEN not in f"{item.what} {item.why}"

    assert "unproven" not in items(resume.run(load(*REPLAYS)))


def test_unproven_load_is_not_recorded_as_a_replay(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "custom_acp")
    resume.run(load())
    row = AgentCapability.objects.get(agent_name="hermes", capability="load_session")
    assert (row.kept_proof, row.replayed_at) == ("unproven", None)


def test_agent_that_names_the_earlier_conversation_in_a_new_one_is_unproven(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "custom_acp")
    session = resume.run(agent(session_new=[result({"sessionId": TOKEN})]), mode="fresh_start")
    receipt = session.receipts.first()
    assert receipt is not None
    assert receipt_of(session) == ("resumed", "unproven")
    assert "earlier conversation" in receipt.evidence["known_by"]
    assert resume.token_outcome() == "kept"


def test_set_aside_conversation_is_known_again_by_its_id(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "custom_acp")
    by_directory = agent(session_new=[result({"sessionId": TOKEN})])
    resume.run(by_directory)
    assert resume.token_outcome() == "aside"
    assert receipt_of(resume.run(by_directory)) == ("resumed", "unproven")
    assert resume.token_outcome() == "kept"


def test_new_conversation_with_another_id_is_fresh(tmp_path: Path) -> None:
    session = Resume(tmp_path, "custom_acp").run(
        agent(session_new=[result({"sessionId": "another"})]), mode="fresh_start"
    )
    assert receipt_of(session) == ("fresh", "none")


BY_DIRECTORY = result({"sessionId": TOKEN})
"""The answer to ``session/new`` of an agent that continues the conversation of its directory."""


def continues(*replayed: Action, after: tuple[Action, ...] = ()) -> Script:
    return agent(session_new=[*replayed, BY_DIRECTORY, *after])


@pytest.mark.parametrize(
    ("script", "receipt", "gets_history"),
    [
        (continues(), ("resumed", "unproven"), False),
        (continues(*REPLAYS), ("resumed", "replay"), False),
        (continues(after=REPLAYS), ("resumed", "replay"), False),
        (continues(chunk("user", "paint the shed")), ("injected", "pending"), True),
        (agent(session_new=[result({"sessionId": "another"})]), ("injected", "pending"), True),
    ],
)
def test_agent_that_has_its_conversation_gets_no_history(
    script: Script, receipt: tuple[str, str], gets_history: bool, tmp_path: Path
) -> None:
    resume = Resume(tmp_path, "auggie")
    resume.run(agent())  # it offers no way to restore a conversation
    session = resume.run(script)
    assert (receipt_of(session), session.inject_history) == (receipt, gets_history)


def test_conversation_reported_as_lost_gets_the_history_under_the_same_id(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "auggie")
    resume.run(agent(load=True, session_load=[error(-32603, f"Session not found: {TOKEN}")]))
    session = resume.run(continues())
    assert (receipt_of(session), session.inject_history) == (("injected", "pending"), True)

    lost = Resume(tmp_path, "auggie")
    lost.run(agent(load=True, session_load=[error(-32603, f"Session not found: {TOKEN}")]))
    assert receipt_of(lost.run(continues(*REPLAYS))) == ("resumed", "replay")


def test_replay_into_a_new_conversation_is_compared_in_the_receipt(tmp_path: Path) -> None:
    resume = Resume(tmp_path, "custom_acp")
    session = resume.run(continues(*REPLAYS), mode="fresh_start")
    receipt = session.receipts.first()
    assert receipt is not None
    assert receipt.evidence["replay_compared"].startswith("1 of 1 completed requests")
