"""A chat model as an agent: the model is stateless, and its conversation survives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from executors_app.agentctl.drivers import StartFailed, StartRequest, StartResult, TurnFailed, openai_chat
from executors_app.agentctl.drivers.openai_chat import ChatDriver
from sessions_app.turns.rules.transient_errors import retry_after_hint, transient_trouble
from tests.agents.chat_server import DONE, KEY, ChatServer, Handler, answer_of, chat_server, event, refuses, says
from tests.agents.hosts import RecordingHost
from tests.waiting import PATIENCE, eventually_async, pass_time

Start = Callable[..., Any]


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[ChatServer]:
    async with chat_server() as server:
        yield server


@pytest.fixture
def host(tmp_path: Path) -> RecordingHost:
    return RecordingHost(tmp_path)


@pytest_asyncio.fixture
async def driver(host: RecordingHost) -> AsyncIterator[ChatDriver]:
    made = ChatDriver(host)
    yield made
    host.has_room.set()
    await made.stop(0)


def request_to(server: ChatServer, token: str | None = None, **changes: Any) -> StartRequest:
    values = {"model": "small", "env": server.env(), "strategy": "native" if token else "fresh", **changes}
    return StartRequest(launch_id="launch-1", argv=["openai-chat"], cwd="/", resume_token=token, **values)


async def ask(driver: ChatDriver, message_id: str, text: str) -> str:
    return await driver.prompt(message_id, text, (), lambda: None)


async def start_with(driver: ChatDriver, server: ChatServer, *answers: Handler) -> StartResult:
    server.answers[:] = answers
    return await driver.start(request_to(server))


async def test_answer_streams_in_pieces_with_thoughts_and_usage(
    driver: ChatDriver, host: RecordingHost, provider: ChatServer
) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    pieces = (event(thought="hm"), event(text="Hel"), event(text="lo"), event(finish="length"), event(usage=usage))
    started = await start_with(driver, provider, says(b": keep-alive\n\n", *pieces, DONE))
    delivered: list[str] = []

    reason = await driver.prompt("m1", "hi", (), lambda: delivered.append("m1"))

    assert (started.outcome, started.replayed, driver.pid) == ("created", 0, None)
    assert host.tokens == [started.resume_token]
    assert (reason, delivered) == ("max_tokens", ["m1"])
    assert [(line["kind"], line.get("text")) for line in host.lines[:3]] == [
        ("message.thought", "hm"),
        ("message.agent", "Hel"),
        ("message.agent", "lo"),
    ]
    assert [line["usage"] for line in host.of("usage")] == [usage]
    assert provider.requests[0]["model"] == "small"
    assert provider.headers[0]["Authorization"] == f"Bearer {KEY}"


async def test_conversation_is_sent_with_every_prompt_and_reloaded_by_token(
    driver: ChatDriver, host: RecordingHost, provider: ChatServer
) -> None:
    started = await start_with(driver, provider, answer_of("I will."), answer_of("pelican"))
    await ask(driver, "m1", "remember the word pelican")
    await driver.stop(0)
    later = ChatDriver(host)

    loaded = await later.start(request_to(provider, started.resume_token))
    await ask(later, "m2", "what was the word?")
    await later.stop(0)

    assert (loaded.outcome, loaded.resume_token, loaded.replayed) == ("loaded", started.resume_token, 2)
    assert loaded.replayed_user_texts == ["remember the word pelican"]
    assert provider.texts() == [
        ("user", "remember the word pelican"),
        ("assistant", "I will."),
        ("user", "what was the word?"),
    ]
    assert host.exits == [0, 0]


@pytest.mark.parametrize("token", ["chat-" + "0" * 32, "chat-../../../etc/passwd", "", "conversation-1"])
async def test_conversation_missing_from_the_store_is_gone_and_not_replaced(
    token: str, driver: ChatDriver, host: RecordingHost, provider: ChatServer, tmp_path: Path
) -> None:
    with pytest.raises(StartFailed) as failed:
        await driver.start(request_to(provider, token, strategy="native"))

    assert (failed.value.code, failed.value.token_valid) == ("token_rejected", False)
    assert (host.tokens, host.exits) == ([], [])
    assert not (tmp_path / "conversations").exists()


async def test_unreadable_store_does_not_mean_a_lost_conversation(
    driver: ChatDriver, host: RecordingHost, provider: ChatServer, tmp_path: Path
) -> None:
    token = (await driver.start(request_to(provider))).resume_token
    await driver.stop(0)
    kept = tmp_path / "conversations" / f"{token}.jsonl"
    kept.unlink()
    kept.symlink_to("/dev/null")  # a link is not followed, whoever created it

    with pytest.raises(StartFailed) as failed:
        await driver.start(request_to(provider, token))

    assert (failed.value.code, failed.value.token_valid, failed.value.permanent) == ("disk_failing", True, False)


BAD: dict[str, dict[str, str]] = {
    "no address": {"OPENAI_BASE_URL": ""},
    "not http": {"OPENAI_BASE_URL": "file:///etc/passwd"},
    "a bad port": {"OPENAI_BASE_URL": "http://127.0.0.1:99999/v1"},
    "credentials in the address": {"OPENAI_BASE_URL": f"http://me:{KEY}@127.0.0.1/v1"},
    "a key of two lines": {"OPENAI_API_KEY": "a\nX-Other: b"},
}


@pytest.mark.parametrize("wrong", BAD.values(), ids=BAD)
async def test_profile_without_a_usable_provider_fails_permanently(
    wrong: dict[str, str], driver: ChatDriver, provider: ChatServer
) -> None:
    with pytest.raises(StartFailed) as failed:
        await driver.start(request_to(provider, env=provider.env(**wrong)))

    assert failed.value.permanent
    assert KEY not in failed.value.message


@pytest.mark.parametrize(("model", "env", "question"), [("big", "small", "big"), (None, "small", "small")])
async def test_model_comes_from_the_profile_or_the_environment(
    model: str | None, env: str, question: str, driver: ChatDriver, provider: ChatServer
) -> None:
    await driver.start(request_to(provider, model=model, env=provider.env(OPENAI_MODEL=env)))
    await ask(driver, "m1", "hi")

    assert provider.requests[0]["model"] == question


QUOTA = {"error": {"code": "insufficient_quota", "message": "You are out of credit"}}
WITH_KEY = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
TOO_LONG = {"error": {"code": "context_length_exceeded", "message": "too long"}}


@pytest.mark.parametrize(
    ("answer", "code", "after"),
    [
        (refuses(429, {"error": {"message": "slow down"}}, Retry_After="7"), "provider_rate_limited", 7.0),
        (refuses(429, "", Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"), "provider_rate_limited", 0.0),
        (refuses(429, "", Retry_After="nan"), "provider_rate_limited", None),
        (refuses(429, "", Retry_After="soon"), "provider_rate_limited", None),
        (refuses(429, QUOTA), "quota_exhausted", None),
        (refuses(503, "<html>busy</html>", Retry_After="1.5"), "provider_overloaded", 1.5),
        (refuses(529, ""), "provider_overloaded", None),
        (refuses(500, {"error": None}), "provider_overloaded", None),
        (refuses(408, ""), "provider_unreachable", None),
        (refuses(401, WITH_KEY), "auth_required", None),
        (refuses(400, TOO_LONG), "agent_error", None),
        (refuses(307, "", Location="http://127.0.0.1:1/"), "agent_error", None),
        (refuses(200, {"error": {"type": "overloaded_error", "message": "later"}}), "provider_overloaded", None),
        (says(event(error={"code": 429, "message": "slow"})), "provider_rate_limited", None),
        (says(event(error="no reason")), "agent_error", None),
        (says(), "provider_connection_lost", None),
        (says(breaks=True), "provider_connection_lost", None),
        (says(b"data: nonsense\n\n", b"event: x\nid: 1\n\n"), "provider_connection_lost", None),
    ],
)
async def test_provider_failure_has_a_code_and_a_retry_delay(
    answer: Handler, code: str, after: float | None, driver: ChatDriver, host: RecordingHost, provider: ChatServer
) -> None:
    await start_with(driver, provider, answer, answer_of("ok"))

    with pytest.raises(TurnFailed) as failed:
        await ask(driver, "m1", "hi")

    assert (failed.value.code, failed.value.retry_after) == (code, after)
    passes = transient_trouble(code, failed.value.message)
    assert passes == (code if code.startswith("provider_") else None), "the control plane classifies the error likewise"
    assert retry_after_hint(failed.value.message) == (timedelta(seconds=round(after)) if after is not None else None)
    assert KEY not in failed.value.message + str(host.lines)
    assert await ask(driver, "m2", "hi") == "end_turn"
    assert provider.texts() == [("user", "hi")], "an unread prompt is not in the conversation twice"


async def test_unreachable_provider_fails_the_turn(
    driver: ChatDriver, provider: ChatServer, unused_tcp_port: int
) -> None:
    address = {"OPENAI_BASE_URL": f"http://127.0.0.1:{unused_tcp_port}/v1"}
    await driver.start(request_to(provider, env=provider.env(**address)))

    with pytest.raises(TurnFailed) as failed:
        await ask(driver, "m1", "hi")

    assert failed.value.code == "provider_unreachable"


async def test_silent_provider_is_given_up(driver: ChatDriver, host: RecordingHost, provider: ChatServer) -> None:
    await start_with(driver, provider, says(event(text="let me th"), hangs=True), answer_of("ok"))
    turn = asyncio.create_task(ask(driver, "m1", "hi"))
    await eventually_async(host.agent_text)

    pass_time(openai_chat.SILENCE_TIMEOUT)

    with pytest.raises(TurnFailed) as failed:
        await turn
    await ask(driver, "m2", "and?")

    assert failed.value.code == "provider_connection_lost"
    assert provider.texts() == [("user", "hi"), ("assistant", "let me th"), ("user", "and?")]


async def test_cancel_aborts_the_answer_and_keeps_its_text(
    driver: ChatDriver, host: RecordingHost, provider: ChatServer
) -> None:
    await start_with(driver, provider, says(event(text="First, "), hangs=True), answer_of("ok"))
    turn = asyncio.create_task(ask(driver, "m1", "tell me all"))
    await eventually_async(host.agent_text)

    await driver.cancel()

    assert await turn == "cancelled"
    async with asyncio.timeout(PATIENCE):
        await provider.hung_up.wait()
    await ask(driver, "m2", "shorter")
    assert provider.texts() == [("user", "tell me all"), ("assistant", "First, "), ("user", "shorter")]


async def test_stop_in_a_turn_ends_the_agent(driver: ChatDriver, host: RecordingHost, provider: ChatServer) -> None:
    started = await start_with(driver, provider, says(event(text="One"), hangs=True), answer_of("ok"))
    turn = asyncio.create_task(ask(driver, "m1", "count"))
    await eventually_async(host.agent_text)

    assert await driver.stop(0) == 0

    with pytest.raises(TurnFailed) as failed:
        await turn
    assert (failed.value.code, host.exits) == ("agent_exited", [0])
    with pytest.raises(TurnFailed):
        await ask(driver, "m2", "hello?")
    loaded = await driver.start(request_to(provider, started.resume_token))
    assert loaded.replayed == 2, "the partial answer was kept"


async def test_endless_answer_is_cut_off(
    driver: ChatDriver, host: RecordingHost, provider: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_chat, "ANSWER_LIMIT", 1000)
    await start_with(driver, provider, says(*[event(text="x" * 600)] * 4, hangs=True))

    assert await ask(driver, "m1", "hi") == "max_tokens"

    assert len(host.agent_text()) == 2 * 600
    assert host.logs() == ["the answer was cut off: it is too long"]
    async with asyncio.timeout(PATIENCE):
        await provider.hung_up.wait()


async def test_answer_without_streaming_is_accepted(
    driver: ChatDriver, host: RecordingHost, provider: ChatServer
) -> None:
    whole = {"choices": [{"message": {"role": "assistant", "content": "all at once"}, "finish_reason": "stop"}]}
    await start_with(driver, provider, refuses(200, whole))

    assert await ask(driver, "m1", "hi") == "end_turn"
    assert host.agent_text() == "all at once"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "end_turn"),
        ("eos", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("tool_calls", "tool_calls"),
        ("insufficient_system_resource", "insufficient_system_resource"),
        (["stop"], "['stop']"),
        ("", ""),
        (None, ""),
    ],
)
async def test_only_a_known_finish_reason_is_a_regular_end(
    finish: object, reason: str, driver: ChatDriver, provider: ChatServer
) -> None:
    await start_with(driver, provider, says(event(text="half of it"), event(finish=finish), DONE))

    assert await ask(driver, "m1", "hi") == reason


async def test_full_journal_pauses_reading_from_the_provider(
    driver: ChatDriver, host: RecordingHost, provider: ChatServer
) -> None:
    await start_with(driver, provider, answer_of("hello"))
    host.has_room.clear()
    turn = asyncio.create_task(ask(driver, "m1", "hi"))
    await eventually_async(lambda: provider.requests)

    assert host.agent_text() == ""
    host.has_room.set()

    assert await turn == "end_turn"
    assert host.agent_text() == "hello"


async def test_attachments_are_refused(driver: ChatDriver, provider: ChatServer) -> None:
    await driver.start(request_to(provider))

    with pytest.raises(TurnFailed) as failed:
        await driver.prompt("m1", "look", [{"type": "image", "data": "", "mimeType": "image/png"}], lambda: None)

    assert (failed.value.code, provider.requests) == ("attachment_unsupported", [])


async def test_second_start_during_a_live_conversation_is_refused(driver: ChatDriver, provider: ChatServer) -> None:
    await driver.start(request_to(provider))

    with pytest.raises(StartFailed) as failed:
        await driver.start(request_to(provider))

    assert failed.value.code == "already_running"
