"""How much a model reads because of a resume, from the request log of the model: with a cold cache and with a warm one.

The model is a server on the loopback that answers by rules, so no tokenizer counts anything: tokens here are 4 bytes of
what the model reads of a request, its tools, instructions and messages. With a cold cache all of it is new. With a warm
cache, only what follows the longest beginning that it shares with an earlier request of the conversation is: providers
cache beginnings. The floor of both is the same prompt to the same agent just before, without a resume.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from sessions_app.prompts import services as prompts
from sessions_app.recovery.rules.history import BYTES_PER_TOKEN
from sessions_app.recovery.rules.verification import ReceiptKind
from sessions_app.sessions.services import intents
from tests.bench.figures import TOKENS, Figure
from tests.bench.latencies import supervising
from tests.bench.resumes import KandevSession
from tests.bench.world import World
from tests.real_agents.homes import AGENT_TYPES, FORGETFUL, real_agent
from tests.real_agents.model_server import ModelServer, running_model
from tests.waiting import eventually

FILLER: Final = "The parser reads one line after the other, and stops at the first that it does not know. " * 20
"""What makes the conversation longer than an agent's own instructions for a turn: 1,800 characters."""
PROMPTS: Final = 4
PATIENCE: Final = 300.0
QUESTION: Final = "Repeat what the parser does, number"
_HOW: Final = {
    ReceiptKind.LOADED: "loaded",
    ReceiptKind.RESUMED: "resumed",
    ReceiptKind.INJECTED: "told its history",
}


@dataclass(frozen=True, slots=True)
class ReadTokens:
    """What a model reads of one request, in tokens of 4 bytes."""

    cold: float
    warm: float


def of_an_agent(world: World, name: str) -> list[Figure]:
    """Measure one agent (a key of ``AGENT_TYPES``): its first request after it was killed with its agentctl."""
    with running_model() as model, supervising():
        session = KandevSession(
            world, real_agent(name, world.home / f"{name}-home", model.url), AGENT_TYPES[name], tells=name in FORGETFUL
        )
        try:
            for number in range(PROMPTS):
                _ask(session, model, f"{FILLER} ({number})")
            bare = _ask(session, model, f"{QUESTION} 1?")
            session.kill_all()
            resumed = _ask(session, model, f"{QUESTION} 2?")
            how = _HOW[ReceiptKind(session.session.receipts.exclude(kind=ReceiptKind.FAILED)[0].kind)]
        finally:
            world.stop(session.session)
    floor = "the same prompt without a resume"
    return [
        Figure(f"{AGENT_TYPES[name]} {how}, cold cache", resumed.cold, floor, bare.cold, unit=TOKENS),
        Figure(f"{AGENT_TYPES[name]} {how}, warm cache", resumed.warm, floor, bare.warm, unit=TOKENS),
    ]


def _ask(session: KandevSession, model: ModelServer, text: str) -> ReadTokens:
    """Send a prompt, wait for its answer, and return what the model has read of the first request with it."""
    before, ended = list(model.read), session.completed_turns()
    prompts.queue_prompt(session.id, uuid.uuid4().hex, text, session.user)
    asked = [False]

    def answered() -> bool:
        if session.waits_for_a_choice() and not asked[0]:
            asked[0] = True  # the agent has lost its conversation, and its user chooses to continue
            intents.request_resume(session.id, session.user)
        return session.completed_turns() > ended

    eventually(answered, timeout=PATIENCE, describe="the prompt is answered")
    # Some agents also ask a model for a title; the largest request is that of the conversation.
    request = max((request for request in model.read[len(before) :] if text in request), key=len)
    return ReadTokens(len(request) / BYTES_PER_TOKEN, _new_bytes(request, before) / BYTES_PER_TOKEN)


def _new_bytes(request: str, earlier: list[str]) -> int:
    """Return how much of a request follows the longest beginning that it shares with an earlier one."""
    return len(request) - max((_shared_beginning(request, other) for other in earlier), default=0)


def _shared_beginning(one: str, other: str) -> int:
    """Return the number of bytes (the texts are ASCII) with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))
