"""How a turn ended that its agent did not report as failed."""

from __future__ import annotations

import pytest

from executors_app.agents import COMMON_FAILURE_MESSAGES, FailureMessage
from executors_app.plugins import agent_types
from sessions_app.turns.rules.turn_ends import (
    FAILURE_TEXT_LIMIT,
    NO_STOP_REASON,
    early_stop_sentence,
    find_failure_message,
    is_agent_command,
    recorded_stop_reason,
)

OF_TYPES = [failure for kind in agent_types().values() for failure in kind.failure_messages]
FAILURES = [*OF_TYPES, *COMMON_FAILURE_MESSAGES]
SAMPLES = [(failure, sample) for failure in FAILURES for sample in failure.samples]


@pytest.mark.parametrize(("failure", "sample"), SAMPLES, ids=[sample[:40] for _, sample in SAMPLES])
def test_sample_is_recognised_with_the_code_of_its_failure(failure: FailureMessage, sample: str) -> None:
    for text in (sample, f"\n{sample}\n\n", f"⚠️ **{sample}**"):
        found = find_failure_message(text, FAILURES)
        assert found is not None
        assert found.code == failure.code


@pytest.mark.parametrize(
    "text",
    [
        "ok",
        "I've hit your endpoint with 100 requests, and it answered all of them.",
        "The rate limit is reached when more than 5 requests arrive in a second.",
        "Error handling: the function now raises ValueError.",
        "You've hit your target of 100 tests, and the limit is not reached.",
        "Your session has expired in the test on purpose; the middleware returns 401.",
        "We're currently experiencing a failing build.",
        "Login expired is the message that the form shows.",
        "A 429 means that the client sent too many requests.",
        "The session limit of the API is 20; you've hit your session limit in the test above.",
        "You've hit your session limit · resets 7:30pm " + "x" * FAILURE_TEXT_LIMIT,
        "I fixed the rate limit handling: requests that exceed the limit now get 429.",
        "The rate limit was exceeded in the test, so I raised it.",
        "Rate limit exceeded means that the client has to wait before it tries again.",
        "Your plan looks good. Two remarks follow.",
        "Your subscription model has ended up in two tables.",
        "You have used up to three levels of indirection here.",
        "401 is returned for a missing token, 403 for a missing right.",
        "500 errors are logged by the middleware.",
        "Insufficient credits are shown in red on this page.",
        "You have exceeded the recommended line length in two files.",
        "You have reached the limit of what a single file should contain; I suggest to split it.",
        "You've hit the limit in the test, as intended.",
        "You have exhausted your options in this menu.",
        "Too many requests were sent in parallel, so I added a queue.",
        "Overloaded functions are now resolved by their arguments.",
        "Internal server errors are logged by the middleware.",
        "Invalid API keys are refused with 401.",
        "Limit reached is the text that the form shows.",
        "Out of credits is one of the states of an account.",
        "No credits are given for cancelled orders.",
        "Sorry, you have a typo in your configuration.",
        "The model is currently unavailable in the admin, because it is not registered.",
        "Server error handling moved to `errors.py`.",
        "The server is busy-waiting on the lock; use a condition instead.",
        "Your account has been disabled-by-default in the seed, as you asked.",
        "Your team has reached an agreement.",
        "Recursion limit exceeded.",
        "Time limit exceeded.",
        "Budget exceeded means that the flag of the report is set.",
        "Limite ist der Name der Spalte.",
        "Limit erreicht ist der Text, den das Formular zeigt.",
        "Límite de uso alcanzado es el texto del formulario.",
        "La limite est fixée à 20 par minute.",
        "Лимит запросов теперь 20 в минуту.",
        "已达到测试的要求，全部通过。",
        "请求已处理完毕。",
        "제한을 20으로 올렸습니다.",
        "上限を20に変更しました。",
    ],
)
def test_ordinary_answer_is_no_failure(text: str) -> None:
    assert find_failure_message(text, FAILURES) is None


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("end_turn", ""),
        ("", ""),
        ("stop_sequence", ""),
        ("max_tokens", "maximum length"),
        ("max_turn_requests", "maximum number of requests"),
        ("out_of_luck", "a reason that Kandev does not know: out_of_luck"),
    ],
)
def test_early_end_of_a_turn_is_said(reason: str, text: str) -> None:
    sentence = early_stop_sentence(reason)
    assert text in sentence
    assert bool(sentence) == bool(text)


@pytest.mark.parametrize(
    ("reason", "recorded"),
    [(None, NO_STOP_REASON), ("", NO_STOP_REASON), (" \n", NO_STOP_REASON), (" end_turn ", "end_turn"), (3, "3")],
)
def test_end_without_a_reason_is_recorded_as_such(reason: object, recorded: str) -> None:
    assert recorded_stop_reason(reason) == recorded


@pytest.mark.parametrize(
    ("prompt", "is_command"),
    [("/compact", True), ("/clear now", True), ("/mcp:server", True), ("/srv/ada/x is broken", False), ("1/2", False)],
)
def test_commands_of_agents_are_told_from_paths(prompt: str, is_command: bool) -> None:
    assert is_agent_command(prompt) is is_command
