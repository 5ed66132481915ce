from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from executors_app.wire.questions.schema import options_of, parse_question
from sessions_app.api.pagination import SequencePagination
from sessions_app.models import Intent, PermissionRequest, Prompt, TaskSession, Turn, WaitKey, session_transaction
from sessions_app.stream.api import views as conversation
from tests.api.world import PERMISSION, World, message, prompt, say
from tests.raw_events import record_raw_event


def test_events_equal_those_of_the_socket(world: World, api: APIClient) -> None:
    say(world.session, times=2)
    session = TaskSession.objects.get()
    answer = api.get(world.url("events/")).json()
    assert [event["seq"] for event in answer["results"]] == [1, 2]
    event = answer["results"][1]
    assert event.pop("at")
    assert event == {
        "type": "event",
        "event": "session.workspace.changed",
        "seq": 2,
        "epoch": session.epoch,
        "session_id": str(session.id),
        "task_id": str(world.task.id),
        "payload": {"number": 1},
    }


def test_log_is_paginated_without_gaps(world: World, api: APIClient) -> None:
    say(world.session, times=7)
    seen, url = [], world.url("events/?after=1&limit=3")
    while url:
        piece = api.get(url).json()
        seen += [event["seq"] for event in piece["results"]]
        url = piece["next"]
    assert seen == [2, 3, 4, 5, 6, 7]
    assert api.get(world.url("events/?after=7")).json() == {"count": 0, "next": None, "previous": None, "results": []}


def test_page_of_the_log_ends_with_the_row_that_reaches_its_size(
    world: World, api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SequencePagination, "max_bytes", 1000)
    with session_transaction(world.session.id) as transaction:
        for _ in range(5):
            record_raw_event(transaction, "session.workspace.changed", text="x" * 600)
    sizes, url = [], world.url("events/")
    while url:
        piece = api.get(url).json()
        sizes.append(len(piece["results"]))
        url = piece["next"]
    assert sizes == [2, 2, 1]


def test_page_of_messages_ends_with_the_text_that_reaches_its_size(
    world: World, api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SequencePagination, "max_bytes", 1000)
    for number in range(1, 6):
        message(world.session, number, "x" * 300, "y" * 300)
    first = api.get(world.url("messages/")).json()
    assert [row["seq"] for row in first["results"]] == [1, 2]
    assert [row["seq"] for row in api.get(first["next"]).json()["results"]] == [3, 4]


@pytest.mark.parametrize("tail", ["events/", "messages/"])
@pytest.mark.parametrize(
    "query", [{"after": "x"}, {"after": "-1"}, {"after": "9" * 30}, {"after": ""}, {"limit": "0"}, {"limit": "100000"}]
)
def test_invalid_page_parameters_are_named(world: World, api: APIClient, tail: str, query: dict[str, str]) -> None:
    answer = api.get(world.url(tail), query)
    assert answer.status_code == 400
    assert answer.json()["details"].keys() == query.keys()


def test_message_has_its_whole_text(world: World, api: APIClient) -> None:
    message(world.session, 1, "One, ", "two, ", "three.")
    message(world.session, 2)
    rows = api.get(world.url("messages/")).json()["results"]
    assert [(row["seq"], row["role"], row["text"]) for row in rows] == [
        (1, "agent", "One, two, three."),
        (2, "agent", ""),
    ]
    assert [row["seq"] for row in api.get(world.url("messages/"), {"after": 1}).json()["results"]] == [2]


@pytest.mark.parametrize("parts", [("abcdefghij" * 3,), ("abcde", "f", "ghijabcdefghijabcdefghi", "j")])
def test_long_text_is_cut_and_can_be_read_to_its_end(
    world: World, api: APIClient, monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...]
) -> None:
    monkeypatch.setattr(conversation, "MAX_TEXT", 7)
    message(world.session, 1, "short")
    message(world.session, 2, *parts)
    message(world.session, 3, "another long text")
    rows = api.get(world.url("messages/")).json()["results"]
    assert [(row["text"], row["text_length"]) for row in rows] == [("short", 5), ("abcdefg", 30), ("another", 17)]
    text = ""
    while len(text) < 30:
        [row] = api.get(world.url("messages/"), {"after": 1, "limit": 1, "text_from": len(text)}).json()["results"]
        assert 0 < len(row["text"]) <= 7
        text += row["text"]
    assert text == "abcdefghij" * 3
    [row] = api.get(world.url("messages/"), {"after": 1, "limit": 1, "text_from": 99}).json()["results"]
    assert row["text"] == ""


def test_receipts_and_runs_are_listed(world: World, api: APIClient) -> None:
    Turn.objects.create(session=world.session, message_id="m", started_at=timezone.now())
    [receipt] = api.get(world.url("receipts/")).json()["results"]
    [run] = api.get(world.url("runs/")).json()["results"]
    assert (receipt["kind"], receipt["verified"], receipt["evidence"]) == ("resumed", "pending", {})
    assert (run["message_id"], run["state"], run["ended_at"]) == ("m", "running", None)


def test_run_shows_what_its_row_knows_and_null_for_the_rest(world: World, api: APIClient) -> None:
    known = {"origin": "prompt", "first_seq": 3, "last_seq": 9, "stop_reason": "end_turn", "snapshot_before": "a" * 40}
    started = {"session": world.session, "state": "completed", "started_at": timezone.now()}
    Turn.objects.create(**started, message_id="new", usage={"input_tokens": 7}, **known)
    Turn.objects.create(**started, message_id="of release 1.0.0")
    rows = {row["message_id"]: row for row in api.get(world.url("runs/")).json()["results"]}
    new, old = rows["new"], rows["of release 1.0.0"]
    fields = (*known, "usage", "snapshot_after")
    assert {name: new[name] for name in fields} == {**known, "usage": {"input_tokens": 7}, "snapshot_after": None}
    assert {name: old[name] for name in fields} == dict.fromkeys(fields)


def test_prompts_can_be_filtered_by_state(world: World, api: APIClient) -> None:
    prompt(world.session, "held", "1")
    prompt(world.session, "queued", "2")
    held = api.get(world.url("prompts/"), {"state": "held"}).json()["results"]
    assert [(row["message_id"], row["text"], row["resent_as"]) for row in held] == [("1", "Paint it green", None)]
    assert api.get(world.url("prompts/")).json()["count"] == 2
    assert api.get(world.url("prompts/"), {"state": "lost"}).status_code == 400


def test_resending_a_held_prompt_creates_one_new_prompt(world: World, api: APIClient) -> None:
    prompt(world.session, "held", "a/1")
    first = api.post(world.url("prompts/a/1/resend/"))
    second = api.post(world.url("prompts/a/1/resend/"))
    assert (first.status_code, first.json()["state"]) == (202, "queued")
    assert first.json() == second.json()
    [old] = Prompt.objects.filter(message_id="a/1").values("state", "resent_as__message_id")
    assert old == {"state": "dismissed", "resent_as__message_id": first.json()["message_id"]}
    assert Prompt.objects.count() == 2


def interrupted(world: World) -> Turn:
    """Return a run that was interrupted during a tool call."""
    now = timezone.now()
    run = Turn.objects.create(session=world.session, message_id="1", state="interrupted", started_at=now, ended_at=now)
    prompt(world.session, "interrupted", "1")
    TaskSession.objects.update(state="WAITING_FOR_INPUT")
    world.mark_running()
    with session_transaction(world.session.id) as transaction:
        record_raw_event(
            transaction, "session.run.interrupted", f"run.interrupted:{run.id}", unfinished_tools=["Paint the gate"]
        )
    return run


def test_continuing_an_interrupted_prompt_creates_one_system_prompt(world: World, api: APIClient) -> None:
    run = interrupted(world)
    first = api.post(world.url("prompts/1/continue/"))
    assert first.status_code == 202
    assert (first.json()["message_id"], first.json()["kind"]) == (f"continue:{run.id}", "continue")
    for known in (world.task.title, "Paint it green", "Paint the gate"):
        assert known in first.json()["text"]
    assert api.post(world.url("prompts/1/continue/")).json() == first.json()
    [old] = Prompt.objects.filter(message_id="1").values("state", "continued_by__message_id")
    assert old == {"state": "dismissed", "continued_by__message_id": f"continue:{run.id}"}


def test_held_prompt_cannot_be_continued(world: World, api: APIClient) -> None:
    prompt(world.session, "held", "1")
    answer = api.post(world.url("prompts/1/continue/"))
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert Prompt.objects.count() == 1


def test_held_prompt_is_dismissed_and_queued_one_withdrawn(world: World, api: APIClient) -> None:
    prompt(world.session, "held", "1")
    prompt(world.session, "queued", "2")
    assert api.post(world.url("prompts/1/dismiss/")).json()["state"] == "dismissed"
    assert api.delete(world.url("prompts/2/")).status_code == 204
    assert api.delete(world.url("prompts/2/")).status_code == 409
    assert dict(Prompt.objects.values_list("message_id", "state")) == {"1": "dismissed", "2": "withdrawn"}


@pytest.mark.parametrize("verb", ["resend", "continue", "dismiss"])
def test_unknown_prompt_returns_404(world: World, api: APIClient, verb: str) -> None:
    assert api.post(world.url(f"prompts/nothing/{verb}/")).status_code == 404


def answer_to(world: World, api: APIClient, **body: Any) -> Any:
    return api.post(world.url(f"permissions/{PERMISSION}/"), body, format="json")


def test_repeated_answer_to_a_permission_is_accepted_once(world: World, api: APIClient) -> None:
    [permission] = api.get(world.url("permissions/"), {"state": "pending"}).json()["results"]
    assert permission["options"][0]["option_id"] == "allow"
    key = permission["resume_token"]
    for _ in range(2):
        assert answer_to(world, api, option_id="allow", resume_token=key).status_code == 202
    assert Intent.objects.get(kind="answer").payload == {"permission_id": PERMISSION, "option_id": "allow"}
    PermissionRequest.objects.update(state="resolved", option_id="allow")
    assert answer_to(world, api, option_id="allow", resume_token=key).status_code == 200
    [permission] = api.get(world.url("permissions/")).json()["results"]
    assert (permission["resume_token"], permission["answered_by"]) == (None, world.member.username)


def test_permission_accepts_only_its_own_options_and_key(world: World, api: APIClient) -> None:
    refused = answer_to(world, api, option_id="everything", resume_token=world.token())
    assert (refused.status_code, list(refused.json()["details"])) == (400, ["option_id"])
    for wrong in ({}, {"resume_token": ""}, {"resume_token": "kwt_guess"}):
        refused = answer_to(world, api, option_id="allow", **wrong)
        assert (refused.status_code, refused.json()["code"]) == (403, "token_invalid")
    key = {"resume_token": world.token()}
    assert api.post(world.url("permissions/other/"), {"option_id": "allow", **key}, format="json").status_code == 404
    assert not Intent.objects.filter(kind="answer").exists()


@pytest.mark.parametrize(
    ("became", "code"),
    [
        ({"revoked_at": timezone.now(), "reason": "agent_gone"}, "token_revoked"),
        ({"expires_at": timezone.now()}, "token_expired"),
        ({"consumed_at": timezone.now(), "idempotency_key": "deny", "first_answer": {}}, "token_consumed"),
    ],
)
def test_unusable_permission_key_says_why(world: World, api: APIClient, became: dict[str, Any], code: str) -> None:
    key = world.token()
    WaitKey.objects.update(**became)
    refused = answer_to(world, api, option_id="allow", resume_token=key)
    assert (refused.status_code, refused.json()["code"]) == (410, code)
    assert refused.json()["details"]["wait_id"] == PERMISSION
    assert api.get(world.url("permissions/")).json()["results"][0]["resume_token"] is None


def test_question_is_answered_with_content_and_errors_by_field(world: World, api: APIClient) -> None:
    schema = {"properties": {"name": {"type": "string", "maxLength": 5}}, "required": ["name"]}
    question = parse_question({"mode": "form", "message": "Which?", "requestedSchema": schema})
    values = {"kind": "question", "question": question, "options": options_of(question)}
    PermissionRequest.objects.filter(id=PERMISSION).update(**values)
    [permission] = api.get(world.url("permissions/")).json()["results"]
    assert (permission["kind"], permission["question_status"], permission["question"]) == (
        "question",
        "pending",
        question,
    )

    def answer(content: Any) -> Any:
        body = {"option_id": "accept", "resume_token": world.token(), "content": content}
        return api.post(world.url(f"permissions/{PERMISSION}/"), body, format="json")

    refused = answer({"name": "too long"})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_answer")
    problem = {"code": "too_long", "message": "Expected at most 5 characters."}
    assert refused.json()["details"] == {"fields": {"name": problem}}
    assert answer([]).json()["code"] == "validation_error"
    accepted = answer({"name": "wren"})
    assert (accepted.status_code, "wren" in accepted.content.decode()) == (202, False)
    assert answer({"name": "wren"}).status_code == 202
    assert answer({"name": "owl"}).json()["code"] == "token_consumed"
