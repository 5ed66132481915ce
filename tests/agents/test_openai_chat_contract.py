"""The parts of the driver contract that need neither a process nor tools, for the driver without a process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from executors_app.agentctl.drivers import StartRequest, openai_chat
from tests.agents import test_driver_contract as contract
from tests.agents.chat_server import ChatServer, answer_of, chat_server, event, says
from tests.agents.driver_contract import Agent, Talk

test_cancel_ends_the_turn_and_the_next_one_works = contract.test_cancel_ends_the_turn_and_the_next_one_works
test_cancel_without_a_turn_does_nothing = contract.test_cancel_without_a_turn_does_nothing
test_lost_conversation_is_recognised_and_never_started_anew = (
    contract.test_lost_conversation_is_recognised_and_never_started_anew
)
test_line_of_a_megabyte_is_read = contract.test_line_of_a_megabyte_is_read
test_prompt_of_a_megabyte_arrives = contract.test_prompt_of_a_megabyte_arrives
test_resumed_agent_remembers_the_conversation = contract.test_resumed_agent_remembers_the_conversation
test_stop_between_turns_leaves_no_process = contract.test_stop_between_turns_leaves_no_process
test_stop_in_a_turn_leaves_no_process_and_is_reported_once = (
    contract.test_stop_in_a_turn_leaves_no_process_and_is_reported_once
)
test_agent_is_not_started_twice = contract.test_agent_is_not_started_twice
test_conversation_has_its_id_before_its_first_message = contract.test_conversation_has_its_id_before_its_first_message
test_turns_of_one_agent_share_one_conversation = contract.test_turns_of_one_agent_share_one_conversation


@pytest.fixture
def agent() -> Agent:
    return Agent("openai_chat", openai_chat, gone="", resumed="loaded", names_itself=False)


class ChatTalk(Talk):
    """A conversation with a model that knows only what each request contains."""

    def __init__(self, agent: Agent, directory: Path, server: ChatServer):
        super().__init__(agent, directory)
        self._server = server

    def request(self, **changes: Any) -> StartRequest:
        return replace(super().request(**changes), env=self._server.env(), model="mind")


@pytest_asyncio.fixture
async def talk(agent: Agent, tmp_path: Path) -> AsyncIterator[Talk]:
    async with chat_server(_obey_prompt) as server:
        talk = ChatTalk(agent, tmp_path, server)
        yield talk
        await talk.driver.stop(0)


async def _obey_prompt(request: web.Request, server: ChatServer) -> web.StreamResponse:
    """Obey the last line of the prompt, using the conversation in the request as memory."""
    texts = [text for role, text in server.texts() if role == "user"]
    words = [word for text in texts for word in re.findall(r"remember the word (\w+)", text)]
    match texts[-1].strip().splitlines()[-1].split():
        case ["what", *_]:
            answer = answer_of(f"The word was {words[-1]}." if words else "I know no word.")
        case ["remember", *_, word]:
            answer = answer_of(f"I will remember {word}.")
        case ["hang"]:
            answer = says(event(text="waiting"), hangs=True)
        case ["shout", amount]:
            answer = answer_of("x" * int(amount))
        case _:
            answer = answer_of("What?")
    response: web.StreamResponse = await answer(request, server)
    return response
