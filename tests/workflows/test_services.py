"""Saving workflows and starting runs: rights, refusals and idempotency."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User

from executors_app.models import AgentProfile
from sessions_app.accounts.models import TeamRole
from sessions_app.kernel.services.errors import (
    Conflict,
    IdempotencyKeyReused,
    Invalid,
    ReadOnly,
    SessionsError,
    WorktreeNotShared,
)
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services import runs, workflows
from tests.supervisor.rows import change, fresh, make_user
from tests.workflows.run_world import place, repository, team
from tests.workflows.workflow_builder import node, workflow

pytestmark = pytest.mark.django_db

CONSTANT = workflow([node("one", "constant", value=1)])
SHELL = workflow([node("say", "shell", script="echo it")])
DEFAULTED = {"name": "text", "type": "string", "default": "Write it."}
AGENT = workflow([node("coder", "agent", prompt="Write it.")])


def start(text: str = CONSTANT, user: User | None = None, **values: Any) -> WorkflowRun:
    given = {"team": team(), "executor": place(), **values}
    return runs.start_run(user or make_user(), text=text, **given)[0]


def save(**values: Any) -> Workflow:
    return workflows.save_workflow(make_user(), {"team": team(), "text": CONSTANT, "name": "it", **values})[0]


def test_invalid_text_is_saved_but_cannot_be_run() -> None:
    broken = workflow([node("say", "shell", script="x")], ["say > nobody"])
    row, problems = workflows.save_workflow(make_user(), {"team": team(), "text": broken, "name": "it"})
    assert (row.is_valid, [one.code for one in problems if one.severity == "error"] != []) == (False, True)
    with pytest.raises(Invalid) as refused:
        start(broken)
    assert refused.value.details["problems"]


def test_workflow_name_defaults_to_the_name_in_its_file() -> None:
    assert save(name="").name == "test"
    assert save(name="mine").name == "mine"


def test_update_of_an_older_revision_is_refused() -> None:
    row = save()
    workflows.save_workflow(make_user(), {"text": SHELL}, row, revision=1)
    with pytest.raises(Conflict):
        workflows.save_workflow(make_user(), {"text": AGENT}, row, revision=1)
    assert (fresh(row).text, fresh(row).revision) == (SHELL, 2)


def test_change_of_other_fields_is_no_new_revision() -> None:
    row = save()
    changed, _ = workflows.save_workflow(make_user(), {"description": "that"}, row, revision=1)
    assert (changed.description, changed.revision) == ("that", 1)


def test_workflow_name_is_unique_in_a_team_until_archived() -> None:
    row = save()
    with pytest.raises(Conflict):
        save()
    workflows.archive_workflow(make_user(), row)
    assert save().name == "it"
    with pytest.raises(Conflict):
        workflows.save_workflow(make_user(), {"text": SHELL}, row)


def viewer() -> User:
    user = make_user("vera")
    TeamRole.objects.create(user=user, team=team(), role=TeamRole.Role.VIEWER)
    return user


@pytest.mark.parametrize("what", ["save", "archive", "start", "cancel", "retry"])
def test_viewer_changes_nothing(what: str) -> None:
    row, run, user = save(), start(), viewer()
    does: dict[str, Callable[[], object]] = {
        "save": lambda: workflows.save_workflow(user, {"text": SHELL}, row),
        "archive": lambda: workflows.archive_workflow(user, row),
        "start": lambda: start(user=user),
        "cancel": lambda: runs.cancel_run(user, run),
        "retry": lambda: runs.retry_run(user, run),
    }
    with pytest.raises(ReadOnly):
        does[what]()


@pytest.mark.parametrize("given", ["nothing", "staff", "permission"])
def test_unisolated_shells_require_staff_or_a_trusted_team(given: str) -> None:
    user = make_user()
    if given == "staff":
        user = change(user, is_staff=True)
    if given == "permission":
        team().permissions.add(Permission.objects.get(codename="operate_unisolated"))
    if given == "nothing":
        with pytest.raises(ReadOnly, match="operate_unisolated"):
            start(SHELL, user, repository=repository())
    else:
        assert start(SHELL, user, repository=repository()).state == "queued"


def strange_team() -> Group:
    return Group.objects.get_or_create(name="strangers")[0]


@pytest.mark.parametrize(
    ("text", "values", "error", "word"),
    [
        (AGENT, {}, Invalid, "repository"),
        (AGENT, {"executor": "sprites"}, WorktreeNotShared, "worktree"),
        (AGENT, {"repository": "strange"}, Invalid, "another team"),
        (CONSTANT, {"inputs": {"x": "y" * (1 << 20)}}, Invalid, "inputs"),
        (CONSTANT, {"inputs": {"x": object()}}, Invalid, "JSON"),
        (CONSTANT, {"files": {"a": 1}}, Invalid, "texts"),
        ("a" * (1 << 21), {}, Invalid, "KiB"),
    ],
)
def test_impossible_run_is_refused_at_once(
    text: str, values: dict[str, Any], error: type[SessionsError], word: str
) -> None:
    made: dict[str, Any] = {"repository": repository() if "executor" in values else None, **values}
    if values.get("repository") == "strange":
        made["repository"] = change(repository(), team=strange_team())
    if "executor" in values:
        made["executor"] = place(values["executor"])
    with pytest.raises(error, match=word):
        start(text, **made)
    assert not WorkflowRun.objects.exists()


def test_runners_and_models_are_checked_before_anything_runs() -> None:
    AgentProfile.objects.create(name="Codex", agent_type="codex")
    nodes = [node(name, "agent", prompt="x", runner=runner) for name, runner in (("a", "codex"), ("b", "amp"))]
    with pytest.raises(Invalid, match="Step “b”: no agent profile matches the runner “amp”"):
        start(workflow(nodes, ["a > b.input"]), repository=repository())
    misnamed = workflow([node("a", "agent", prompt="x", runner="codex", model="--dangerous")])
    with pytest.raises(Invalid) as refused:
        start(misnamed, repository=repository())
    assert "is not a model name" in refused.value.details["problems"][0]
    assert not WorkflowRun.objects.exists()


NAMED = workflow(
    [
        node("start", "trigger", outputs=[{"name": "count", "type": "number", "required": True}, DEFAULTED]),
        node("in", "interface-input"),
    ],
    interface={"inputs": [{"name": "level", "type": "boolean", "default": False}], "outputs": []},
)


def test_declared_inputs_are_typed_and_have_defaults() -> None:
    given = start(NAMED, inputs={"count": "3", "level": "true", "more": [1]}).inputs
    assert (given["count"], given["level"], given["text"], given["more"]) == (3, True, "Write it.", [1])
    assert start(NAMED, inputs={"count": 3, "text": "Another."}).inputs["text"] == "Another."


@pytest.mark.parametrize("count", [None, ""])
def test_every_missing_or_invalid_input_is_named(count: str | None) -> None:
    with pytest.raises(Invalid) as refused:
        start(NAMED, inputs={"count": count, "level": "perhaps"})
    words = ["The input “level”: “perhaps” is neither true nor false.", "The input “count” is missing."]
    assert refused.value.details["problems"] == words
    assert not WorkflowRun.objects.exists()


def test_run_notes_that_the_demo_agent_is_used_instead() -> None:
    profile = AgentProfile.objects.create(name="Demo", agent_type="demo")
    run = start(workflow([node("a", "agent", prompt="x", runner="codex")]), repository=repository())
    assert "“codex”, so the demo agent is used instead" in run.note
    assert start(AGENT, repository=repository(), agent_profile=profile).note == ""


def test_resume_requires_the_agents_of_the_run() -> None:
    profile = AgentProfile.objects.create(name="Codex", agent_type="codex")
    run = change(start(AGENT, repository=repository(), agent_profile=profile), state="failed")
    change(run, agent_profile=None)
    AgentProfile.objects.create(name="Another", agent_type="codex")
    with pytest.raises(Invalid, match="names no runner"):
        runs.retry_run(make_user(), run)


def test_key_starts_one_run_and_cannot_be_reused_for_another() -> None:
    assert start(key="k") == start(key="k")
    with pytest.raises(IdempotencyKeyReused):
        start(key="k", inputs={"text": "other"})
    assert WorkflowRun.objects.count() == 1


def test_repeated_or_late_cancel_changes_nothing() -> None:
    run = start()
    first = runs.cancel_run(make_user(), run).cancel_requested_at
    assert runs.cancel_run(make_user(), run).cancel_requested_at == first
    over = change(start(), state="succeeded")
    assert runs.cancel_run(make_user(), over).cancel_requested_at is None


@pytest.mark.parametrize("state", ["queued", "running", "succeeded"])
def test_only_an_unsuccessful_run_can_be_resumed(state: str) -> None:
    with pytest.raises(Conflict):
        runs.retry_run(make_user(), change(start(), state=state))


def test_run_starts_with_the_inputs_of_its_trigger() -> None:
    run = start(inputs={"text": "hello", "params": {"n": 1}})
    assert (run.inputs["text"], run.inputs["params"], run.inputs["type"]) == ("hello", {"n": 1}, "manual")
    assert json.dumps(run.inputs)
