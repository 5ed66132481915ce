"""The errors of a model provider that are transient, and the delay before the turn is retried."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sessions_app.turns.rules.transient_errors import (
    NON_PROVIDER_CODES,
    RETRY_DELAYS,
    TROUBLE_SENTENCES,
    ProviderTrouble,
    retry_after_hint,
    retry_delay,
    transient_trouble,
)

LIMITED, OVERLOADED = ProviderTrouble.RATE_LIMITED, ProviderTrouble.OVERLOADED
UNREACHABLE, LOST, FINAL = ProviderTrouble.UNREACHABLE, ProviderTrouble.CONNECTION_LOST, None

ERROR_TEXTS = [
    ("exceeded retry limit, last status: 429 Too Many Requests", LIMITED),
    ('API Error: 429 {"type":"error","error":{"type":"rate_limit_error","message":"Slow down"}}', LIMITED),
    ("Rate limit reached for requests. Please try again in 1.2s.", LIMITED),
    ('got status: RESOURCE_EXHAUSTED. {"code":429}', LIMITED),
    ("You exceeded your current quota, please check your plan. Please retry in 23.5s.", LIMITED),
    ("Request was throttled", LIMITED),
    ('API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', OVERLOADED),
    ("API Error: 500 Internal server error", OVERLOADED),
    ("unexpected status 503 Service Unavailable: mock", OVERLOADED),
    ('Internal error ({"code":503,"status":"UNAVAILABLE"})', OVERLOADED),
    ("The model is overloaded. Please try again later.", OVERLOADED),
    ("502 Bad Gateway", OVERLOADED),
    ("Internal error ({'details': 'HTTP 504'})", OVERLOADED),
    ("The server had an error while processing your request", OVERLOADED),
    ("We are experiencing high demand right now", OVERLOADED),
    ("stream disconnected before completion: error decoding response body", LOST),
    ("read ECONNRESET", LOST),
    ("socket hang up", LOST),
    ("Connection reset by peer", LOST),
    ("API Error (Connection error.)", LOST),
    ("httpx.RemoteProtocolError: incomplete chunked read", LOST),
    ("connect ECONNREFUSED 127.0.0.1:443", UNREACHABLE),
    ("getaddrinfo EAI_AGAIN api.example", UNREACHABLE),
    ("TypeError: fetch failed", UNREACHABLE),
    ("error sending request for url", UNREACHABLE),
    ("Request timed out.", UNREACHABLE),
    ("status code: 408", UNREACHABLE),
    ("Internal error", FINAL),
    ("", FINAL),
    ("HTTP 400: messages: roles must alternate", FINAL),
    ("API Error: 401 invalid x-api-key", FINAL),
    ("status 403 Forbidden", FINAL),
    ("HTTP 404: model_not_found", FINAL),
    ("prompt is too long: 210000 tokens > 200000 maximum, error: 500", FINAL),
    ("429 insufficient_quota: You exceeded your current quota, please check your plan and billing details.", FINAL),
    ("Claude AI usage limit reached|1755806400", FINAL),
    ("Rate limit reached: daily limit. Please try again in 6h", FINAL),
    ("Your credit balance is too low", FINAL),
    ("line 503 of parser.py is wrong, exit code 1", FINAL),
]


@pytest.mark.parametrize(
    ("message", "trouble"), ERROR_TEXTS, ids=[message[:40] or "nothing" for message, _ in ERROR_TEXTS]
)
def test_provider_message_is_transient_or_final(message: str, trouble: ProviderTrouble | None) -> None:
    assert transient_trouble("agent_error", message) == trouble


@pytest.mark.parametrize("code", sorted(NON_PROVIDER_CODES))
def test_non_provider_error_is_final_whatever_its_message(code: str) -> None:
    assert transient_trouble(code, "503 Service Unavailable") is None


def test_error_code_of_the_driver_names_the_trouble() -> None:
    assert transient_trouble("provider_rate_limited", "please wait") is LIMITED
    assert set(TROUBLE_SENTENCES) == set(ProviderTrouble)


@pytest.mark.parametrize(
    ("attempt", "message", "seconds"),
    [
        *((number, "overloaded", seconds) for number, seconds in enumerate((5, 10, 20, 40, 60), 1)),
        (9, "overloaded", 60),
        (1, "retry-after: 20", 20),
        (1, 'retryDelay: "39s"', 39),
        (1, "Please try again in 500ms", 5),
        (1, "try again in 1m", 60),
        (1, "try again in 6m0s", 5),
        (4, "retry after 2 seconds", 40),
        (1, "try again in 61s", 5),
    ],
)
def test_delay_grows_and_respects_provider_hints_up_to_a_minute(attempt: int, message: str, seconds: float) -> None:
    assert retry_delay(attempt, message).total_seconds() == seconds
    assert len(RETRY_DELAYS) == 5


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("try again in 2 days", timedelta(days=2)),
        ("Resets in 1 week.", timedelta(weeks=1)),
        ("retry after 3h", timedelta(hours=3)),
        ("retry-after: 30", timedelta(seconds=30)),
        ("try again in 20 minutes", timedelta(minutes=20)),
    ],
)
def test_hint_of_a_provider_is_read_in_its_unit(message: str, expected: timedelta) -> None:
    assert retry_after_hint(message) == expected


@pytest.mark.parametrize("number", ["9" * 12, "9" * 20, "9" * 400, "9" * 5000])
@pytest.mark.parametrize("unit", ["", "m", "h", " weeks"])
def test_any_number_in_a_message_is_read_without_an_error(number: str, unit: str) -> None:
    message = f"rate limit: retry after {number}{unit}"
    assert retry_delay(1, message) == RETRY_DELAYS[0]


def test_limit_that_lifts_after_days_is_not_retried() -> None:
    assert transient_trouble("agent_error", "You exceeded your weekly limit, try again in 2 days") is None
