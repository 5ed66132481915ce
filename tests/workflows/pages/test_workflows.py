"""The pages of workflows: list, editor, run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.board.services.tasks import create_session
from sessions_app.models import Repository
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services import run_attention
from sessions_app.workflows.services.workflows import save_workflow
from tests.pages.world import World, path_of
from tests.workflows.pages.workflow_rows import PLAIN, TEXT, looped_run, make_run, make_workflow, ran

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


def message_of(answer: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def posted(world: World, text: str = PLAIN, **values: Any) -> dict[str, Any]:
    return {"do": "save", "name": "Mine", "text": text, "team": world.team.pk, **values}


def test_empty_list_offers_the_examples(ada: Client) -> None:
    answer = ada.get("/workflows/")
    assert "No workflow yet" in message_of(answer)
    assert "?example=review-until-approved" in answer.content.decode()


def test_example_prefills_a_new_workflow(ada: Client) -> None:
    page = ada.get("/workflows/new/?example=review-until-approved").content.decode()
    assert "until the reviewer approves" in page
    assert "Valid" in page, "whether it can be run depends on settings that are not chosen yet"
    assert "A new workflow" in ada.get("/workflows/new/?example=../secret").content.decode()


def test_workflow_without_the_repository_it_needs_cannot_be_run_yet(ada: Client, world: World) -> None:
    workflow = make_workflow(world, repository=None)
    page = message_of(ada.get(f"/workflows/{workflow.id}/"))
    assert "Cannot be run yet Its agent steps need a workspace. Choose a repository." in page
    assert "Can be run" not in page

    Workflow.objects.update(repository=Repository.objects.get(team=world.team))
    page = message_of(ada.get(f"/workflows/{workflow.id}/"))
    assert "Can be run" in page


@pytest.mark.parametrize("what", ["executor", "profile"])
def test_page_says_what_was_disabled_before_a_step_needs_it(ada: Client, world: World, what: str) -> None:
    workflow = make_workflow(world, agent_profile=world.profile, executor=world.executor)
    run = make_run(world, workflow)
    page = f"/workflows/runs/{run.id}/"
    assert "disabled" not in message_of(ada.get(page))
    row = getattr(world, what)
    type(row).objects.filter(pk=row.pk).update(disabled_at=timezone.now())
    assert f"“{row.name}” is disabled. Choose another one." in message_of(ada.get(f"/workflows/{workflow.id}/"))
    assert f"“{row.name}” was disabled after this run had started" in message_of(ada.get(page))
    type(run).objects.update(state="failed", ended_at=timezone.now())
    assert "was disabled" not in message_of(ada.get(page)), "it needs nothing any more"


def test_check_while_typing_uses_the_chosen_repository(ada: Client, world: World) -> None:
    workflow = make_workflow(world, repository=None)
    repository = Repository.objects.get(team=world.team)
    address, form = "/workflows/check/", posted(world, workflow.text, workflow=workflow.id, do="check")
    assert "Cannot be run yet" in ada.post(address, form).json()["parts"]["check"]
    assert "Can be run" in ada.post(address, {**form, "repository": repository.id}).json()["parts"]["check"]


def test_schedule_that_could_not_run_promises_no_run(ada: Client, world: World) -> None:
    cron = TEXT.replace("{ label: Start }", '{ label: Start, triggerType: cron, cron: "0 5 * * *" }')
    ada.post("/workflows/new/", posted(world, cron, triggers_enabled="on"))
    workflow = Workflow.objects.get()
    assert (workflow.triggers_enabled, workflow.next_run_at) == (False, None)
    assert "Choose a repository" in workflow.triggers_paused


def test_new_workflow_preselects_the_only_repository(ada: Client, world: World) -> None:
    """Saving and running an example as shown must not fail for lack of a workspace."""
    [only] = Repository.objects.filter(team=world.team)
    address = "/workflows/new/?example=review-until-approved"
    assert f'<option value="{only.id}" selected>' in ada.get(address).content.decode()
    Repository.objects.create(team=world.team, name="second", path="/srv/second")
    assert " selected>None (an empty directory)" in ada.get(address).content.decode()


def test_list_shows_the_last_and_next_run(ada: Client, world: World) -> None:
    cron = TEXT.replace("{ label: Start }", '{ label: Start, triggerType: cron, cron: "0 5 * * *" }')
    workflow = make_workflow(world, cron, triggers_enabled=True)
    make_run(world, workflow, state="failed")
    page = message_of(ada.get("/workflows/"))
    assert "Mend and check" in page
    assert "Failed : the last run of Mend and check" in page
    assert "05:00" in page


def test_board_task_links_to_its_workflow_run(ada: Client, world: World) -> None:
    run = make_run(world, make_workflow(world, TEXT))
    page = ada.get("/").content.decode()
    assert page.count(f'href="/workflows/runs/{run.id}/"') == 1


def test_invalid_workflow_is_saved_with_its_problems(ada: Client, world: World) -> None:
    text = PLAIN.replace("target: told", "target: nobody")
    answer = ada.post("/workflows/new/", posted(world, text.replace("\n", "\r\n")), follow=True)
    row = Workflow.objects.get()
    assert (row.text, row.is_valid, row.created_by) == (text, False, world.ada)
    assert answer.redirect_chain == [(f"/workflows/{row.id}/", 302)]
    page = message_of(answer)
    assert "Saved, but it cannot be run yet" in page
    assert "Line 7" in page
    assert 'data-line="7"' in answer.content.decode()


@pytest.mark.parametrize("button", ["check", "open", "apply"])
def test_other_buttons_keep_the_typed_text_and_save_nothing(ada: Client, world: World, button: str) -> None:
    workflow = make_workflow(world)
    typed = TEXT.replace("A loop", "Another loop")
    answer = ada.post(
        f"/workflows/{workflow.id}/", {"do": button, "text": typed, "node": "coder", "node-label": "Coder"}
    )
    assert "Another loop" in answer.content.decode()
    workflow.refresh_from_db()
    assert workflow.text == TEXT


def test_node_settings_are_applied_and_comments_kept(ada: Client, world: World) -> None:
    workflow = make_workflow(world)
    opened = ada.post(f"/workflows/{workflow.id}/", {"do": "open", "text": TEXT, "node": "coder"}).content.decode()
    assert "Keep the session" in opened
    fields = {"node-label": "Writer", "node-prompt": "Mend {{ inputs.task }}", "node-timeout": "60"}
    request = {"do": "apply", "text": TEXT, "node": "coder", **fields, "node-keep_session": "on"}
    made = ada.post("/workflows/check/", {**request, "workflow": str(workflow.id)}).json()
    assert "      label: Writer   # its name stays\n" in made["text"]
    assert "timeout: 60" in made["text"]
    assert "resumable: true" in made["text"]
    assert "{ name: taskPrompt, type: string }, { name: iteratePrompt, type: string }" in made["text"]
    assert "Save it to keep the change" in made["said"]
    again = ada.post("/workflows/check/", {**request, "text": made["text"]}).json()
    assert again["text"] == made["text"]
    del request["node-keep_session"]
    anew = ada.post("/workflows/check/", {**request, "text": made["text"]}).json()["text"]
    assert "taskPrompt" not in anew


def test_invalid_setting_is_reported_beside_its_field(ada: Client, world: World) -> None:
    workflow = make_workflow(world)
    request = {"do": "apply", "text": TEXT, "node": "loop", "node-label": "Loop", "node-maxIterations": "none"}
    answer = ada.post(f"/workflows/{workflow.id}/", request)
    assert answer.status_code == 422
    assert "Enter a whole number." in message_of(answer)


def test_unknown_node_is_reported(ada: Client, world: World) -> None:
    answer = ada.post("/workflows/check/", {"do": "open", "text": TEXT, "node": "nobody"})
    assert answer.json()["trouble"] == "The text has no step “nobody”. Choose another one."


def test_edit_conflict_shows_both_texts_and_can_be_overridden(ada: Client, world: World) -> None:
    workflow = make_workflow(world)
    save_workflow(world.ada, {"text": TEXT.replace("Mend {{", "Repair {{")}, workflow)
    mine = posted(world, TEXT.replace("Mend {{", "Heal {{"), revision=1)
    answer = ada.post(f"/workflows/{workflow.id}/", mine)
    assert answer.status_code == 409
    page = answer.content.decode()
    assert "This workflow was changed after you opened it" in page
    assert "Heal {{" in page
    assert "Repair {{" in page
    assert 'name="revision" value="2"' in page
    assert ada.post(f"/workflows/{workflow.id}/", {**mine, "revision": 2}).status_code == 302
    workflow.refresh_from_db()
    assert ("Heal" in workflow.text, workflow.revision) == (True, 3)


def test_repeated_run_form_starts_one_run(ada: Client, world: World) -> None:
    workflow = make_workflow(world)
    ways = [ada.post(f"/workflows/{workflow.id}/run/", {"text": "the fence", "key": "k"}) for _ in range(2)]
    run = WorkflowRun.objects.get()
    assert [way["Location"] for way in ways] == [f"/workflows/runs/{run.id}/"] * 2
    assert (run.inputs["text"], run.trigger, run.started_by) == ("the fence", "manual", world.ada)


def test_inbox_links_to_a_failed_run(ada: Client, world: World) -> None:
    run = make_run(world, make_workflow(world, text=PLAIN, name="Plain"), "failed", error="It did not work.")
    run_attention.raise_run_failed(run)
    page = ada.get("/attention/").content.decode()
    assert f'class="button small main" href="/workflows/runs/{run.id}/">Open run' in page
    assert ada.get(f"/workflows/runs/{run.id}/").status_code == 200


DECLARED = """\
version: 3
metadata: { name: Declared }
nodes:
  - id: start
    type: trigger
    data:
      outputs:
        - { name: count, type: number, label: How many, description: "At most <9>", required: true, default: 3 }
        - { name: deep, type: boolean }
edges: []
"""


def test_declared_inputs_are_form_fields(ada: Client, world: World) -> None:
    workflow = make_workflow(world, text=DECLARED)
    page = ada.get(f"/workflows/{workflow.id}/").content.decode()
    wanted = ("How many", "At most &lt;9&gt;", "3</textarea>", "run-input-1")
    assert [words for words in wanted if words not in page] == []
    way = f"/workflows/{workflow.id}/run/"
    assert "“x” is not a number" in message_of(ada.post(way, {"input-0": "x"}, follow=True))
    assert "How many: This field is required." in message_of(ada.post(way, {}, follow=True))
    ada.post(way, {"input-0": "7", "input-1": "on"})
    given = WorkflowRun.objects.get().inputs
    assert (given["count"], given["deep"], given["text"]) == (7, True, "")


def test_refused_run_is_explained_in_a_notice(ada: Client, world: World) -> None:
    workflow = make_workflow(world, repository=None)
    answer = ada.post(f"/workflows/{workflow.id}/run/", {"text": ""}, follow=True)
    assert "Choose a repository" in message_of(answer)


def test_run_shows_node_states_in_graph_and_text(ada: Client, world: World) -> None:
    run = looped_run(world, world.session())
    page = ada.get(f"/workflows/runs/{run.id}/").content.decode()
    assert re.search(r'<a href="\?node=loop%2Fcoder#node-detail"[^>]*aria-label="Coder: waiting for you"', page)
    assert '<rect class="node good"' in page
    assert "Coder is waiting for you." in page
    assert "2 of 4 steps have run" in page
    assert 'data-every="1000"' in page


def test_run_that_is_too_large_to_draw_says_so(ada: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions_app.workflows.views.runs.MAX_RUN_DRAWING", 100)
    run = looped_run(world, world.session())
    page = message_of(ada.get(f"/workflows/runs/{run.id}/"))
    assert "This workflow is too large to draw. Select steps in the list below instead." in page
    assert "Coder is waiting for you." in page


def test_every_iteration_of_a_node_can_be_shown(ada: Client, world: World) -> None:
    session = world.session()
    run = looped_run(world, session)
    newest = ada.get(f"/workflows/runs/{run.id}/?node=loop/coder").content.decode()
    assert "2 of 2" in newest
    assert f"/sessions/{session.id}/" in newest
    first = ada.get(f"/workflows/runs/{run.id}/", {"node": "loop/coder", "at": "loop[1]/coder"}).content.decode()
    assert "I mended &lt;it&gt;" in first
    live = ada.get(f"/workflows/runs/{run.id}/live/", {"node": "loop/coder", "at": "loop[1]/coder"}).json()
    assert "I mended &lt;it&gt;" in live["parts"]["run"]


def test_node_is_called_by_its_label_as_in_the_drawing(ada: Client, world: World) -> None:
    run = looped_run(world, world.session())
    assert "Coder Waiting for you loop[2]/coder" in message_of(ada.get(f"/workflows/runs/{run.id}/?node=loop/coder"))
    assert "Tell It has not started" in message_of(ada.get(f"/workflows/runs/{run.id}/?node=end"))


def test_failed_node_is_preselected_and_can_be_resumed(ada: Client, world: World) -> None:
    run = make_run(world, state="failed", error="coder failed")
    ran(run, "trigger", kind="trigger")
    ran(run, "loop", "failed", kind="loop", error="inner")
    ran(run, "loop[1]/coder", "failed", kind="agent", error="The agent gave up.", output_tail="last words")
    page = ada.get(f"/workflows/runs/{run.id}/").content.decode()
    assert "The agent gave up." in page
    assert "last words" in page
    assert 'name="node" value="loop[1]/coder"' in page


def test_run_can_be_cancelled_and_rerun(ada: Client, world: World) -> None:
    run = make_run(world)
    ada.post(f"/workflows/runs/{run.id}/cancel/")
    run.refresh_from_db()
    assert run.cancel_requested_at is not None
    WorkflowRun.objects.update(state="cancelled")
    again = ada.post(f"/workflows/runs/{run.id}/again/")
    other = WorkflowRun.objects.exclude(id=run.id).get()
    assert again["Location"] == f"/workflows/runs/{other.id}/"
    assert (other.inputs["text"], other.workflow_id) == ("the fence", run.workflow_id)


def test_archived_workflow_is_listed_separately(ada: Client, world: World) -> None:
    workflow = make_workflow(world)
    ada.post(f"/workflows/{workflow.id}/archive/")
    assert "Mend and check" not in message_of(ada.get("/workflows/live/"))
    assert "Mend and check" in message_of(ada.get("/workflows/?archived=1"))


def test_task_and_sessions_link_to_their_workflow_run(ada: Client, world: World) -> None:
    run = make_run(world)
    session = create_session(world.ada, run.task, world.profile, world.executor)
    for path in (f"/tasks/{run.task_id}/", path_of(session)):
        assert f"/workflows/runs/{run.id}/" in ada.get(path).content.decode()
    assert "/workflows/runs/" not in ada.get(path_of(world.session())).content.decode()


def more_workflows(world: World, run: WorkflowRun, count: int) -> None:
    first = Workflow.objects.count()
    for number in range(first, first + count):
        make_run(world, make_workflow(world, name=str(number)))


def more_runs(world: World, run: WorkflowRun, count: int) -> None:
    for _ in range(count):
        make_run(world, run.workflow)


def more_nodes(world: World, run: WorkflowRun, count: int) -> None:
    first = run.node_runs.count()
    for number in range(first, first + count):
        ran(run, f"loop[{number}]/coder", session=world.session())


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/workflows/", more_workflows),
        ("/workflows/live/", more_workflows),
        ("/workflows/{workflow}/", more_runs),
        ("/workflows/runs/{run}/?node=loop/coder", more_nodes),
        ("/workflows/runs/{run}/live/?node=loop/coder", more_nodes),
    ],
)
def test_query_count_does_not_grow_with_runs(
    ada: Client, world: World, path: str, more: Callable[[World, WorkflowRun, int], None]
) -> None:
    run = looped_run(world)
    path = path.format(workflow=run.workflow_id, run=run.id)
    ada.get(path)
    costs = []
    for _ in range(2):
        more(world, run, 3)
        with CaptureQueriesContext(connection) as queries:
            assert ada.get(path).status_code == 200
        costs.append(len(queries))
    assert costs[0] == costs[1]
    assert costs[0] <= 16


def scheduled(world: World) -> Workflow:
    cron = TEXT.replace("{ label: Start }", '{ label: Start, triggerType: cron, cron: "0 5 * * *" }')
    return make_workflow(world, cron, triggers_enabled=True)


def test_change_of_a_scheduled_workflow_is_shown_and_confirmed(ada: Client, world: World) -> None:
    row = scheduled(world)
    text = row.text.replace("Mend {{", "Repair <script> {{")
    form = posted(world, text, triggers_enabled="on", revision=1, repository=row.repository_id)
    answer = ada.post(f"/workflows/{row.id}/", form, follow=True)
    page = answer.content.decode()
    assert "Scheduled runs are paused" in page
    assert '<span class="added">+      prompt: &quot;Repair &lt;script&gt;' in page
    assert 'name="triggers_enabled"' not in page
    assert "paused until a change is confirmed" in message_of(ada.get("/workflows/"))
    inbox = ada.get("/attention/").content.decode()
    assert f'href="/workflows/{row.id}/"' in inbox
    assert "Open workflow" in inbox
    fingerprint = re.findall(r'name="fingerprint" value="(\w{64})"', page)[0]
    confirmed = ada.post(f"/workflows/{row.id}/triggers/", {"do": "confirm", "fingerprint": fingerprint}, follow=True)
    assert "Scheduled runs have your rights from now on" in message_of(confirmed)
    assert "Scheduled runs have the rights of ada" in message_of(confirmed)
    row.refresh_from_db()
    assert (row.triggers_enabled, row.triggers_enabled_by) == (True, world.ada)


def test_paused_triggers_can_be_disabled_and_not_confirmed_unseen(ada: Client, world: World) -> None:
    row = scheduled(world)
    save_workflow(world.ada, {"text": PLAIN}, row)
    refused = ada.post(f"/workflows/{row.id}/triggers/", {"do": "confirm", "fingerprint": "unseen"}, follow=True)
    assert "The workflow has changed since you opened this page" in message_of(refused)
    assert "Scheduled triggers are switched off" in message_of(
        ada.post(f"/workflows/{row.id}/triggers/", {"do": "off"}, follow=True)
    )
    row.refresh_from_db()
    assert (row.triggers_enabled, row.triggers_paused) == (False, "")


def test_viewer_sees_paused_triggers_without_buttons(ada: Client, world: World) -> None:
    row = scheduled(world)
    save_workflow(world.ada, {"text": PLAIN}, row)
    assert f'action="/workflows/{row.id}/triggers/"' in ada.get(f"/workflows/{row.id}/").content.decode()
    world.ada.team_roles.create(team=world.team, role="viewer")
    page = ada.get(f"/workflows/{row.id}/").content.decode()
    assert "Scheduled runs are paused" in page
    assert f'action="/workflows/{row.id}/triggers/"' not in page


def test_manual_run_of_an_unseen_revision_is_refused(ada: Client, world: World) -> None:
    row = make_workflow(world, PLAIN)
    run = make_run(world, row)
    save_workflow(world.ada, {"text": f"{PLAIN}\n"}, row)
    answer = ada.post(f"/workflows/{row.id}/run/", {"text": "", "revision": 1}, follow=True)
    assert "This workflow was changed after you opened it" in message_of(answer)
    assert "has changed since this run began" in message_of(ada.post(f"/workflows/runs/{run.id}/again/", follow=True))
    assert WorkflowRun.objects.count() == 1
