"""Workflows in the API: saved even if invalid, run once for each key, cancelled and resumed."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from sessions_app.workflows.models import NodeRun, Workflow, WorkflowRun
from tests.api.world import World, client_of, workflow_run

LIST = "/api/v1/workflows/"
PLAIN = "{version: 3, metadata: {name: Plain}, nodes: [{id: one, type: trigger}], edges: []}"


def made(api: APIClient, **values: Any) -> dict[str, Any]:
    answer = api.post(LIST, {"text": PLAIN, **values}, format="json")
    assert answer.status_code == 201, answer.content
    return dict(answer.json())


def test_invalid_workflow_is_saved_with_problems_and_line_numbers(world: World, api: APIClient) -> None:
    saved = made(api, name="Mine", text=PLAIN.replace("type: trigger", "type: nothing"))
    assert (saved["is_valid"], saved["revision"], saved["team"]) == (False, 1, world.team.pk)
    assert {"severity": "error", "line": 1, "node": "one"}.items() <= saved["problems"][0].items()
    mended = api.patch(f"{LIST}{saved['id']}/", {"text": PLAIN, "revision": 1}, format="json").json()
    assert (mended["is_valid"], mended["revision"], mended["problems"]) == (True, 2, [])
    assert api.get(f"{LIST}{saved['id']}/").json() == mended


def test_update_of_an_older_revision_is_refused(world: World, api: APIClient) -> None:
    saved = made(api)
    api.patch(f"{LIST}{saved['id']}/", {"text": f"{PLAIN}\n"}, format="json")
    answer = api.patch(f"{LIST}{saved['id']}/", {"text": PLAIN, "revision": 1}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert answer.json()["details"]["revision"] == 2


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"text": "x" * ((1 << 20) + 1)}, "text"),
        ({"text": 7}, "text"),
        ({"files": {"a": 1}}, "files"),
        ({"files": {str(number): "" for number in range(201)}}, "files"),
        ({"files": {"a" * 1025: ""}}, "files"),
        ({"repository": "00000000-0000-0000-0000-000000000000"}, "repository"),
        ({"agent_profile": "00000000-0000-0000-0000-000000000000"}, "agent_profile"),
        ({"team": "other team"}, "team"),
    ],
)
def test_invalid_value_is_refused_by_field(world: World, api: APIClient, values: Any, field: str) -> None:
    answer = api.post(LIST, {"text": PLAIN, **values}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
    assert field in answer.json()["details"]
    assert not Workflow.objects.exists()


def test_run_is_started_once_for_each_key(world: World, api: APIClient) -> None:
    workflow = made(api)
    body = {"text": "the fence", "params": {"a": [1]}, "inputs": {"b": 2}, "idempotency_key": "k"}
    answers = [api.post(f"{LIST}{workflow['id']}/runs/", body, format="json") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    run = WorkflowRun.objects.get()
    assert answers[0].json()["id"] == answers[1].json()["id"] == str(run.id)
    assert {"text": "the fence", "params": {"a": [1]}, "b": 2, "type": "api"}.items() <= run.inputs.items()
    assert run.trigger == "api"
    other = api.post(f"{LIST}{workflow['id']}/runs/", {**body, "text": "x"}, format="json")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")


def test_archived_workflow_is_listed_separately_and_starts_nothing(world: World, api: APIClient) -> None:
    workflow = made(api)
    assert api.delete(f"{LIST}{workflow['id']}/").status_code == 204
    assert api.get(LIST).json()["count"] == 0
    assert api.get(f"{LIST}?archived=true").json()["count"] == 1
    assert api.post(f"{LIST}{workflow['id']}/runs/", {}, format="json").status_code == 409


def test_runs_can_be_listed_shown_cancelled_and_resumed(world: World, api: APIClient) -> None:
    run = workflow_run(world)
    NodeRun.objects.create(run=run, position=0, path="one", node="one", kind="trigger", outputs={"text": "x"})
    listed = api.get(f"/api/v1/workflow-runs/?workflow={run.workflow_id}&state=queued").json()
    assert [one["id"] for one in listed["results"]] == [str(run.id)]
    address = f"/api/v1/workflow-runs/{run.id}/"
    (node,) = api.get(address).json()["nodes"]
    assert (node["path"], node["state"], node["outputs"]) == ("one", "running", {"text": "x"})
    assert api.post(f"{address}resume/", {}, format="json").status_code == 409
    assert api.post(f"{address}cancel/").json()["cancel_requested"] is True
    WorkflowRun.objects.update(state="cancelled")
    assert api.post(f"{address}resume/", {"node": "nowhere"}, format="json").status_code == 400


def test_check_returns_problems_and_drawing_and_writes_nothing(world: World, api: APIClient) -> None:
    good = api.post(f"{LIST}check/", {"text": PLAIN}, format="json").json()
    assert (good["valid"], good["problems"]) == (True, [])
    assert good["svg"].startswith("<svg")
    bad = api.post(f"{LIST}check/", {"text": "nodes: ["}, format="json").json()
    assert (bad["valid"], bad["svg"]) == (False, "")
    assert bad["problems"][0]["code"] == "syntax"
    named = PLAIN.replace("type: trigger", "type: component, data: {workflowPath: part.yaml}")
    part = "{version: 3, metadata: {name: x}, interface: {}, nodes: [{id: a, type: constant}], edges: []}"
    assert "part.yaml" in api.post(f"{LIST}check/", {"text": named}, format="json").json()["problems"][0]["message"]
    assert api.post(f"{LIST}check/", {"text": named, "files": {"part.yaml": part}}, format="json").json()["valid"]
    assert not Workflow.objects.exists()


def test_checks_are_throttled(world: World, api: APIClient) -> None:
    cache.clear()
    statuses = [api.post(f"{LIST}check/", {"text": ""}, format="json").status_code for _ in range(121)]
    assert statuses == [200] * 120 + [429]
    assert client_of(world.stranger).post(f"{LIST}check/", {"text": ""}, format="json").status_code == 200
    cache.clear()


def more_workflows(world: World, count: int) -> None:
    for number in range(count):
        row = Workflow.objects.create(team=world.team, name=f"{Workflow.objects.count()} {number}", text="x")
        for _ in range(2):
            WorkflowRun.objects.create(
                team=world.team, workflow=row, name="x", text="x", task=world.task, executor=world.executor
            )


def more_nodes(world: World, count: int) -> None:
    run, first = WorkflowRun.objects.earliest("created_at"), NodeRun.objects.count()
    for number in range(first, first + count):
        NodeRun.objects.create(run=run, position=number, path=str(number), node="n", kind="x", session=world.session)


@pytest.mark.parametrize(
    ("path", "more", "most"),
    [(LIST, more_workflows, 3), ("/api/v1/workflow-runs/", more_workflows, 3), ("one", more_nodes, 4)],
)
def test_query_count_does_not_grow_with_rows(world: World, path: str, more: Any, most: int) -> None:
    run = workflow_run(world)
    path = f"/api/v1/workflow-runs/{run.id}/" if path == "one" else path
    costs = []
    for _ in range(2):
        more(world, 3)
        with CaptureQueriesContext(connection) as queries:
            assert client_of(world.member).get(path).status_code == 200
        costs.append(len(queries))
    assert costs[0] == costs[1]
    assert costs[0] <= most


def test_paused_triggers_show_the_change_and_need_an_entitled_confirmation(world: World, api: APIClient) -> None:
    staff = client_of(world.staff)
    clock = PLAIN.replace("type: trigger", 'type: trigger, data: {triggerType: cron, cron: "0 5 * * *"}')
    row = made(staff, team=world.team.pk, text=clock, triggers_enabled=True, repository=str(world.repository.id))
    assert (row["triggers_enabled"], row["triggers_enabled_by"], row["triggers_paused"]) == (True, world.staff.pk, "")
    shell = clock.replace("nodes: [", "nodes: [{id: say, type: shell, data: {script: cat secret.key}}, ")
    changed = api.patch(f"{LIST}{row['id']}/", {"text": shell, "triggers_enabled": True}, format="json").json()
    assert (changed["triggers_enabled"], changed["triggers_paused"]) == (False, "member changed the text.")
    address = f"{LIST}{row['id']}/triggers/"
    body = api.get(address).json()
    assert (body["may_confirm"], body["enabled_by_name"]) == (False, "staff")
    assert "+" in body["changes"][0]["text"] and "cat secret.key" in body["changes"][0]["text"]
    (item,) = [one for one in api.get("/api/v1/attention/").json()["results"] if one["workflow_id"] == row["id"]]
    assert (item["session_id"], item["task_title"], item["url"]) == (None, "Plain", f"/workflows/{row['id']}/")
    confirmation = {"fingerprint": body["fingerprint"]}
    assert api.post(f"{address}confirm/", confirmation, format="json").status_code == 403
    assert staff.post(f"{address}confirm/", {"fingerprint": "of another"}, format="json").status_code == 409
    confirmed = staff.post(f"{address}confirm/", confirmation, format="json").json()
    assert (confirmed["enabled"], confirmed["paused"], confirmed["changes"]) == (True, "", [])
    assert staff.post(f"{address}confirm/", {}, format="json").status_code == 400


def test_run_of_an_outdated_revision_is_refused(world: World, api: APIClient) -> None:
    row = made(api)
    api.patch(f"{LIST}{row['id']}/", {"text": f"{PLAIN}\n"}, format="json")
    answer = api.post(f"{LIST}{row['id']}/runs/", {"revision": 1}, format="json")
    assert (answer.status_code, answer.json()["details"]["revision"]) == (409, 2)
    assert api.post(f"{LIST}{row['id']}/runs/", {"revision": 2}, format="json").status_code == 201
