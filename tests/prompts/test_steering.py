"""A prompt for the running turn is handed over at most once; if it is not taken there, it is the same queued prompt."""

from __future__ import annotations

from typing import Any, Final

import pytest

from executors_app.wire.protocol import JournalKind
from sessions_app.kernel.services.errors import Conflict, NotSteerable, PromptNotQueued
from sessions_app.models import Prompt, UsageBudget
from sessions_app.prompts import services as prompts
from sessions_app.prompts.delivery import send_next_prompt
from sessions_app.prompts.steering import send_steered_prompts
from sessions_app.sessions.services.status import load_status
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.recording_agentctl import RecordingAgentctl, recording_agentctl
from tests.supervisor.recording_runtime import RecordingListener, with_registry
from tests.supervisor.rows import (
    MINE,
    NO_LEASE,
    change,
    conversation,
    execution_of,
    fresh,
    make_user,
    names,
    prompt_states,
    running_session,
)

pytestmark = pytest.mark.django_db(transaction=True)

STEERS: Final[dict[str, Any]] = {"metadata": {prompts.STEERING_KEY: True}}


class Working:
    """A session whose agent works on the prompt ``p1`` and takes texts into its turn."""

    def __init__(self, **fields: Any):
        self.journal = Journal()
        self.session = running_session(**{**STEERS, **fields})
        Prompt.objects.create(session=self.session, message_id="p1", text="do it", state="sending")
        self.lines: list[Line] = []
        self.ingest(*self.journal.turn_begins("p1", "do it"))

    def ingest(self, *lines: Line) -> None:
        """Read further lines of the journal."""
        self.lines += lines
        change(execution_of(self.session), owner=MINE.owner, generation=MINE.generation)
        ingest(self.session, lines)

    def steered(self, kind: JournalKind, message_id: str = "s1") -> None:
        """Read a line about a text for the turn."""
        self.ingest(self.journal.line(kind, message_id=message_id, turn="p1", text="use tabs"))

    def queue(self, message_id: str = "s1", *, now: bool = True) -> Prompt:
        """Queue a prompt, for the running turn if ``now``."""
        return prompts.queue_prompt(self.session.id, message_id, "use tabs", make_user(), now=now)[0]

    def send(self, agentctl: RecordingAgentctl, times: int = 1, *, next_too: bool = False) -> list[str]:
        """Return the ids of the texts that agentctl received in that many attempts of a new supervisor."""

        async def work(registry: ExecutionRegistry) -> None:
            assert await registry.open_stream(self.session.id) is not None
            for _ in range(times):
                await send_steered_prompts(registry, self.session.id)
                if next_too:
                    await send_next_prompt(registry, self.session.id)

        change(execution_of(self.session), **NO_LEASE)
        before = len(agentctl.steered)
        with_registry(work, RecordingListener())
        return [body["message_id"] for body in agentctl.steered[before:]]

    @property
    def states(self) -> dict[str, str]:
        """The state of each prompt."""
        return prompt_states(self.session)


@pytest.fixture
def working() -> Working:
    return Working()


def test_prompt_for_now_goes_to_the_running_turn_once(working: Working) -> None:
    assert working.queue().steered_into == "p1"
    assert names(working.session)[-2:] == ["session.prompt.queued", "session.prompt.steered"]
    with recording_agentctl(working.session, working.lines) as agentctl:
        assert working.send(agentctl, times=3) == ["s1"]
        assert agentctl.steered[0] == {"message_id": "s1", "turn": "p1", "text": "use tabs", "attachments": []}
        assert agentctl.prompts == []
    assert working.states == {"p1": "delivered", "s1": "sending"}


def test_prompt_is_queued_unless_it_is_wanted_now(working: Working) -> None:
    assert working.queue(now=False).steered_into == ""
    with recording_agentctl(working.session, working.lines) as agentctl:
        assert working.send(agentctl, next_too=True) == []
        assert agentctl.prompts == []
    assert working.states["s1"] == "queued"


def test_used_up_budget_keeps_a_text_from_the_running_turn(working: Working) -> None:
    UsageBudget.objects.create(session=working.session, tokens=0)
    working.queue()
    with recording_agentctl(working.session, working.lines) as agentctl:
        assert working.send(agentctl, times=2) == []
    assert working.states["s1"] == "queued"
    assert load_status(fresh(working.session)).budget_hold is not None


@pytest.mark.parametrize("fields", [{"metadata": {}}, {"metadata": {prompts.STEERING_KEY: "yes"}}])
def test_agent_that_takes_no_texts_gets_it_as_its_next_prompt(fields: dict[str, Any]) -> None:
    working = Working(**fields)
    assert working.queue().steered_into == ""
    assert not load_status(fresh(working.session)).can_steer
    with pytest.raises(NotSteerable):
        prompts.send_now(working.session.id, "s1")


def test_prompt_without_a_turn_begins_one() -> None:
    session = running_session(**STEERS)
    row, _ = prompts.queue_prompt(session.id, "s1", "use tabs", make_user(), now=True)
    assert row.steered_into == ""
    assert not load_status(fresh(session)).can_steer
    with pytest.raises(NotSteerable):
        prompts.send_now(session.id, "s1")


def test_queued_prompt_is_handed_over_on_request(working: Working) -> None:
    working.queue(now=False)
    assert load_status(fresh(working.session)).can_steer
    for _ in range(2):
        assert prompts.send_now(working.session.id, "s1").steered_into == "p1"
    assert names(working.session).count("session.prompt.steered") == 1
    with recording_agentctl(working.session, working.lines) as agentctl:
        assert working.send(agentctl) == ["s1"]
    with pytest.raises(PromptNotQueued):
        prompts.send_now(working.session.id, "s1")


def test_prompt_of_kandev_is_not_handed_over(working: Working) -> None:
    Prompt.objects.create(session=working.session, message_id="wait:1", text="built", kind="wait")
    with pytest.raises(Conflict):
        prompts.send_now(working.session.id, "wait:1")


def test_taken_text_enters_the_conversation_and_ends_with_the_turn(working: Working) -> None:
    working.queue()
    working.steered(JournalKind.STEER_ACCEPTED)
    assert working.states["s1"] == "accepted"
    assert [text for _, text, _, _ in conversation(working.session)] == ["do it"]
    working.steered(JournalKind.STEER_DELIVERED)
    assert working.states["s1"] == "delivered"
    assert conversation(working.session)[-1] == ("user", "use tabs", {"kind": "user"}, True)
    working.ingest(working.journal.completes("p1"))
    assert working.states == {"p1": "done", "s1": "done"}
    assert working.session.runs.count() == 1


def test_text_taken_after_the_end_of_the_turn_was_read_is_done(working: Working) -> None:
    working.queue()
    working.steered(JournalKind.STEER_ACCEPTED)
    working.ingest(working.journal.completes("p1"))
    working.steered(JournalKind.STEER_DELIVERED)
    assert working.states["s1"] == "done"


def test_declined_text_is_the_next_prompt_exactly_once(working: Working) -> None:
    working.queue()
    working.steered(JournalKind.STEER_ACCEPTED)
    working.steered(JournalKind.STEER_DECLINED)
    row = working.session.prompts.get(message_id="s1")
    assert (row.state, row.steered_into) == ("queued", "")
    working.ingest(working.journal.completes("p1"))
    with recording_agentctl(working.session, working.lines) as agentctl:
        assert working.send(agentctl, times=3, next_too=True) == []
        assert [body["message_id"] for body in agentctl.prompts] == ["s1"]
    assert working.states["s1"] == "sending"


@pytest.mark.parametrize("refusal", ["no_turn", "steering_unsupported", "not_found", "journal_full"])
def test_refused_text_stays_in_the_queue(working: Working, refusal: str) -> None:
    working.queue()
    with recording_agentctl(working.session, working.lines) as agentctl:
        agentctl.refusal = refusal
        assert working.send(agentctl) == ["s1"]
    row = working.session.prompts.get(message_id="s1")
    assert (row.state, row.steered_into) == ("queued", "")


def test_turn_that_ends_first_leaves_the_prompt_in_the_queue(working: Working) -> None:
    working.queue()
    working.ingest(working.journal.completes("p1"))
    with recording_agentctl(working.session, working.lines) as agentctl:
        assert working.send(agentctl, times=2, next_too=True) == []
        assert [body["message_id"] for body in agentctl.prompts] == ["s1"]
    assert working.session.prompts.get(message_id="s1").steered_into == ""


def test_text_whose_answer_is_lost_is_given_again_only_to_the_same_journal(working: Working) -> None:
    working.queue()
    with recording_agentctl(working.session, working.lines) as agentctl:
        agentctl.refusal = "hangs up"
        assert working.send(agentctl) == ["s1"]
        assert working.states["s1"] == "sending"
        agentctl.refusal = ""
        assert working.send(agentctl, next_too=True) == ["s1"]
        assert agentctl.prompts == []
        agentctl.epoch, agentctl.lines = "epoch-2", [Journal("epoch-2").line("log")]
        assert working.send(agentctl) == []
    assert working.states["s1"] == "sending"


def test_prompts_wait_until_it_is_known_whether_a_text_was_taken(working: Working) -> None:
    working.queue()
    with recording_agentctl(working.session, working.lines) as agentctl:
        agentctl.refusal = "hangs up"
        working.send(agentctl)
        agentctl.refusal = ""
        working.queue("p2", now=False)
        working.ingest(working.journal.completes("p1"))
        agentctl.lines = working.lines
        assert working.send(agentctl, times=2, next_too=True) == ["s1"]
        assert agentctl.prompts == []


def test_text_that_agentctl_had_before_is_held_if_its_journal_says_nothing(working: Working) -> None:
    working.queue()
    with recording_agentctl(working.session, working.lines) as agentctl:
        agentctl.refusal = "duplicate"
        assert working.send(agentctl) == ["s1"]
    assert working.states["s1"] == "held"


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ([JournalKind.STEER_ACCEPTED], "held"),
        ([JournalKind.STEER_ACCEPTED, JournalKind.STEER_UNKNOWN], "held"),
        ([JournalKind.STEER_ACCEPTED, JournalKind.STEER_DECLINED], "queued"),
        ([JournalKind.STEER_ACCEPTED, JournalKind.STEER_DELIVERED], "done"),
    ],
)
def test_death_of_the_agent_settles_a_text(working: Working, lines: list[JournalKind], state: str) -> None:
    working.queue()
    for kind in lines:
        working.steered(kind)
    working.ingest(working.journal.exits("p1"))
    assert working.states["s1"] == state


def test_held_text_is_never_given_again_by_itself(working: Working) -> None:
    working.queue()
    working.steered(JournalKind.STEER_ACCEPTED)
    working.steered(JournalKind.STEER_UNKNOWN)
    working.ingest(working.journal.completes("p1"))
    with recording_agentctl(working.session, working.lines) as agentctl:
        assert working.send(agentctl, times=2, next_too=True) == []
        assert agentctl.prompts == []
    assert working.states["s1"] == "held"


def test_continue_prompt_tells_what_was_taken_into_the_turn(working: Working) -> None:
    working.queue()
    working.steered(JournalKind.STEER_ACCEPTED)
    working.steered(JournalKind.STEER_DELIVERED)
    working.ingest(working.journal.exits("p1"))
    again = working.session.prompts.get(kind="continue")
    assert "do it" in again.text
    assert "use tabs" in again.text
    assert working.states["p1"] == "dismissed"
