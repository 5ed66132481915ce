"""Driving a stored run: what a supervisor requests, how it uses results, and that it repeats no request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from executors_app.models import AgentProfile
from executors_app.wire.errors import AgentctlRefused
from executors_app.wire.protocol import Code, Job
from sessions_app.board.services import tasks
from sessions_app.kernel.services.errors import Conflict
from sessions_app.models import AttentionItem, Prompt
from sessions_app.prompts import services as prompts
from sessions_app.workflows.models import NodeRun
from sessions_app.workflows.services import runs
from tests.services import ROOT
from tests.supervisor.rows import change, fresh
from tests.workflows.memory_runs import counting, shell
from tests.workflows.run_world import Script, Scripts, World
from tests.workflows.workflow_builder import node, workflow

pytestmark = pytest.mark.django_db

EXAMPLES = ROOT / "docs/examples/workflows"
SHELL = workflow([node("say", "shell", script="echo it", timeout=30)])
AGENT = workflow([node("coder", "agent", prompt="Write it.", timeout=60)])
TWO_TURNS = workflow(
    [node("first", "agent", prompt="One."), node("second", "agent", prompt="Two.")],
    ["first.sessionId > second.sessionId"],
)


def test_shell_runs_as_job_and_passes_its_output_on() -> None:
    world = World(SHELL)
    run = world.run_to_end()
    assert (run.state, run.error, run.outputs["output"]) == ("succeeded", "", "done")
    (request,) = world.scripts.begun.values()
    assert (request["script"], request["cwd"], request["timeout"]) == ("echo it", ".", 30)


def test_agent_session_belongs_to_task_and_worktree_of_run() -> None:
    world = World(AGENT)
    world.drive()
    (session,) = world.agents
    run = fresh(world.run)
    assert run.workspace is not None
    assert (session.task_id, session.shares_worktree_of_id) == (run.task_id, run.workspace_id)
    assert not run.workspace.has_agent
    assert (world["coder"].session_id, world.prompts) == (session.id, ["Write it."])


@pytest.mark.parametrize("what", ["executor", "agent profile"])
def test_step_says_what_was_disabled_since_the_run_started(what: str) -> None:
    world = World(AGENT)
    row = world.run.executor if what == "executor" else world.profile
    change(row, disabled_at=timezone.now())
    run = world.drive(3)
    reason = f"The {what} “{row.name}” was disabled after this run had started. Ask an administrator to enable it"
    assert (run.state, world.states) == ("failed", {"coder": "failed"})
    assert reason in world["coder"].error
    assert world.agents == []
    change(row, disabled_at=None)
    runs.retry_run(world.user, run)
    world.drive()
    assert world.prompts == ["Write it."]


def test_agent_output_is_the_answer_of_its_turn() -> None:
    world = World(AGENT)
    world.drive()
    world.answer(world.prompt("coder"), "I ", "did it.")
    run = world.drive(2)
    assert (run.state, world["coder"].outputs["output"]) == ("succeeded", "I did it.")
    assert world["coder"].outputs["sessionId"] == str(world.agents[0].id)


def test_received_session_id_adds_prompt_to_that_session() -> None:
    world = World(TWO_TURNS)
    run = world.run_to_end()
    assert (run.state, len(world.agents), world.prompts) == ("succeeded", 1, ["One.", "Two."])
    assert world["first"].outputs["sessionId"] == world["second"].outputs["sessionId"]


def test_one_session_counts_through_loop() -> None:
    text = (EXAMPLES / "test-resumable-claude-code.yaml").read_text()
    scripts = Scripts(answer=echoing)
    AgentProfile.objects.create(name="Claude", agent_type="claude_code")
    world = World(text, scripts)
    run = world.run_to_end(counting)
    assert len(world.agents) == 1, world.prompts
    assert run.state == "succeeded", run.error


def echoing(script: object) -> dict[str, object]:
    """Run a script for real; the example's scripts only print text."""
    assert isinstance(script, dict)
    done = shell(script["script"], script["environment"], Path("/tmp"))
    return {"exit_code": done["exitCode"], "stdout": done["stdout"], "stderr": done["stderr"]}


@pytest.mark.parametrize("text", [SHELL, AGENT], ids=["shell", "agent"])
def test_repeated_passes_of_several_drivers_request_nothing_twice(text: str) -> None:
    world = World(text, Scripts(answer=lambda script: None))
    world.drive(3)
    world.drivers.clear()  # the supervisor was killed
    change(world.run, owner="", lease_expires_at=None)
    world.drive(3, supervisor="another")
    assert len(world.prompts) + len(world.scripts.begun) == 1
    assert len(world.run.node_runs.all()) == 1


def test_job_is_requested_by_id_until_confirmed() -> None:
    world = World(SHELL, Scripts(is_up=False))
    world.drive(2)
    assert (world["say"].waiting_for, world.scripts.begun) == ("machine", {})
    world.scripts.is_up = True
    assert world.drive(2).state == "succeeded"
    assert len(set(world.scripts.requested_jobs)) == 1


def test_agentctl_that_confirms_a_start_without_waiting_is_asked_again() -> None:
    class Older(Scripts):
        async def start_job(self, job_id: str, request: Script, **report: Any) -> Job:
            return {**await super().start_job(job_id, request), "state": "running"}

    world = World(SHELL, Older())
    assert world.drive().state == "succeeded"
    assert len(world.scripts.requested_jobs) == 1


@pytest.mark.parametrize("refusal", [Code.BUSY, Code.NOT_RUNNING, Code.JOURNAL_FULL])
def test_script_with_transient_refusal_is_requested_again(refusal: Code) -> None:
    class Refusing(Scripts):
        async def start_job(self, job_id: str, request: Mapping[str, Any], **report: Any) -> Job:
            raise AgentctlRefused("Not now.", status=409, refusal=refusal)

    world = World(SHELL, Refusing())
    assert not world.drive(2).is_over
    assert world["say"].waiting_for == "machine"


def test_script_lost_by_agentctl_is_never_run_again() -> None:
    world = World(SHELL, Scripts(answer=lambda script: None))
    world.drive(2)
    world.scripts.begun.clear()
    run = world.drive(2)
    assert (run.state, len(world.scripts.requested_jobs)) == ("failed", 1)
    assert "its result is unknown" in run.error


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ({"exit_code": 3, "stdout": "x"}, "exit code 3"),
        ({"exit_code": -9, "stdout": "x"}, "signal 9"),
        ({"exit_code": None, "error": "timeout"}, "longer than 30 s"),
        ({"state": "lost", "exit_code": None}, "result is unknown"),
        ({"exit_code": None, "error": "agentctl_ended"}, "closed or died"),
        ({"exit_code": None, "error": "spawn_failed"}, "could not be started"),
    ],
)
def test_failed_script_reports_the_reason(ended: dict[str, object], words: str) -> None:
    run = World(SHELL, Scripts(answer=lambda script: ended)).run_to_end()
    assert run.state == "failed"
    assert words in run.error


def test_truncated_output_is_marked() -> None:
    world = World(SHELL, Scripts(answer=lambda script: {"exit_code": 0, "stdout": "end\n", "truncated": True}))
    world.run_to_end()
    outputs = NodeRun.objects.get(path="say").outputs
    assert outputs["stdout"] == "end"
    assert "The output was truncated" in outputs["stderr"]


def held(world: World) -> Prompt:
    prompt = world.prompt("coder")
    return change(prompt, state="held")


def test_held_prompt_waits_for_user_and_resend_completes_it() -> None:
    world = World(AGENT)
    world.drive()
    world.journal(world.agents[0])
    held(world)
    assert world.drive(2).state == "running"
    assert (world["coder"].waiting_for, world["coder"].state) == ("user", "running")
    again = prompts.resend_prompt(world.agents[0].id, world["coder"].message_id, world.user)
    world.answer(again, "done at last")
    assert world.drive(2).state == "succeeded"
    assert (world["coder"].outputs["output"], world["coder"].waiting_for) == ("done at last", "")


def test_prompt_of_a_step_is_not_edited_so_its_record_stays_true() -> None:
    world = World(AGENT)
    world.drive()
    prompt = world.prompt("coder")
    assert (prompt.state, prompt.of_workflow, prompt.text) == ("queued", True, "Write it.")
    with pytest.raises(Conflict, match="A step of a workflow"):
        prompts.edit_prompt(prompt.session_id, prompt.message_id, "do something else", world.user, version=1)
    assert fresh(prompt).text == "Write it."


def test_dismissed_prompt_fails_its_node() -> None:
    world = World(AGENT)
    world.drive()
    world.journal(world.agents[0])
    prompts.dismiss_prompt(world.agents[0].id, held(world).message_id)
    run = world.drive(2)
    assert (run.state, "dismissed" in run.error) == ("failed", True)


def test_interrupted_turn_is_followed_to_its_continue_prompt() -> None:
    world = World(AGENT)
    world.drive()
    prompt = world.prompt("coder")
    journal = world.begin_turn(prompt)
    world.ingest(prompt.session, journal.exits(prompt.message_id))
    world.drive()
    assert world["coder"].state == "running"
    again = prompt.session.prompts.get(kind="continue")
    world.answer(again, "and done")
    assert world.drive(2).outputs["output"] == "and done"


def test_interrupted_turn_without_continue_waits_for_user() -> None:
    world = World(AGENT)
    world.drive()
    prompt = world.prompt("coder")
    change(prompt.session, continue_prompts=False)
    journal = world.begin_turn(prompt)
    world.ingest(prompt.session, journal.exits(prompt.message_id))
    world.drive()
    assert world["coder"].waiting_for == "user"
    assert AttentionItem.objects.filter(kind="workflow", resolved_at=None).count() == 1
    again = prompts.continue_interrupted(prompt.session_id, prompt.message_id, world.user)
    world.drive()
    assert world["coder"].waiting_for != "user"
    assert AttentionItem.objects.filter(kind="workflow", resolved_at=None).count() == 0
    world.answer(again, "and done")
    assert world.drive(2).outputs["output"] == "and done"


def test_failed_turn_fails_the_node_but_outputs_its_session() -> None:
    world = World(AGENT)
    world.drive()
    prompt = world.prompt("coder")
    journal = world.begin_turn(prompt)
    world.ingest(
        prompt.session, journal.line("turn.failed", message_id=prompt.message_id, code="refused", message="No.")
    )
    run = world.drive(2)
    assert (run.state, world["coder"].outputs["sessionId"]) == ("failed", str(prompt.session_id))
    assert "No." in run.error


def test_timeout_is_suspended_while_waiting_for_user() -> None:
    world = World(AGENT)
    world.drive()
    world.journal(world.agents[0])
    held(world)
    world.drive()
    change(world["coder"], deadline_at=timezone.now() - timedelta(hours=1))
    assert world.drive(2).state == "running"


def test_agent_timeout_cancels_turn_and_fails_node() -> None:
    world = World(AGENT)
    world.drive()
    prompt = world.prompt("coder")
    world.begin_turn(prompt)
    change(world["coder"], deadline_at=timezone.now() - timedelta(seconds=1))
    run = world.drive(2)
    assert (run.state, "longer than 60 s" in run.error) == ("failed", True)
    assert prompt.session.intents.filter(kind="cancel").exists()


def test_queued_prompt_is_withdrawn_at_timeout() -> None:
    world = World(AGENT)
    world.drive()
    change(world["coder"], deadline_at=timezone.now() - timedelta(seconds=1))
    world.drive(2)
    assert world.prompt("coder").state == "withdrawn"


def test_answer_without_schema_is_requested_again_in_same_session() -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    world = World(workflow([node("judge", "agent", prompt="Judge.", outputSchema=json.dumps(schema))]))
    answers = iter(["I think so", '{"ok": true}'])
    run = world.run_to_end(lambda prompts: next(answers))
    assert (run.state, run.outputs["ok"], len(world.agents), len(world.prompts)) == ("succeeded", True, 1, 2)
    assert world["judge"].attempt == 2


def test_prompt_files_are_appended_to_the_prompt() -> None:
    text = workflow([node("coder", "agent", prompt="Do this:", promptFiles=["plan.md"])])
    world = World(text, Scripts(files={"plan.md": "Step one.\n"}))
    world.drive(2)
    assert world.prompts == ["Do this:\n\nStep one."]


def test_missing_prompt_file_fails_the_node() -> None:
    run = World(workflow([node("coder", "agent", prompt="Do:", promptFiles=["no.md"])])).run_to_end()
    assert (run.state, "no.md" in run.error) == ("failed", True)


def test_function_needs_no_workspace() -> None:
    text = workflow([node("sum", "function", code="1 + 1", language="python", outputs=["result:number"])])
    world = World(text, repository=None)
    run = world.run_to_end()
    assert (run.state, run.outputs, run.workspace_id) == ("succeeded", {"result": 2}, None)


def test_chain_of_short_nodes_needs_one_pass() -> None:
    function = node("double", "function", code="21 * 2", language="python")
    world = World(
        workflow(
            [node("a", "shell", script="a"), function, node("b", "shell", script="b")],
            ["a > double.input", "double > b.input"],
        )
    )
    assert world.drive().state == "succeeded"
    assert set(world.states.values()) == {"succeeded"}


def test_foreign_session_is_refused_unless_passed_as_input() -> None:
    other = World(AGENT)
    other.drive()
    session = str(other.agents[0].id)
    text = workflow([node("coder", "agent", prompt="Go on.", inputs=[{"name": "sessionId", "default": session}])])
    run = World(text).run_to_end()
    assert (run.state, "is not a session of this run" in run.error) == ("failed", True)
    given = World(text, inputs={"params": {"session": session}})
    given.drive()
    assert str(given["coder"].session_id) == session


def test_cancel_during_job_request_stops_the_script() -> None:
    class Cancelled(Scripts):
        async def start_job(self, job_id: str, request: Script, **report: Any) -> Job:
            await sync_to_async(runs.cancel_run)(world.user, world.run)
            return await super().start_job(job_id, request, **report)

    world = World(workflow([node("a", "shell", script="sleep 600")]), Cancelled(answer=lambda script: None))

    assert world.drive().state == "cancelled"
    assert world.scripts.cancelled == list(world.scripts.begun)


def test_cancel_stops_scripts_turns_and_sessions() -> None:
    both = workflow([node("say", "shell", script="sleep 9"), node("coder", "agent", prompt="Write it.")])
    world = World(both, Scripts(answer=lambda script: None))
    world.drive(2)
    prompt = world.prompt("coder")
    world.begin_turn(prompt)
    runs.cancel_run(world.user, world.run)
    run = world.drive(2)
    assert (run.state, world.states) == ("cancelled", {"say": "cancelled", "coder": "cancelled"})
    assert world.scripts.cancelled == [world["say"].job_id]
    assert prompt.session.intents.filter(kind="cancel").exists()
    assert {one.desired_state for one in run.task.sessions.all()} == {"stopped"}


@pytest.mark.parametrize("end", [tasks.archive_task, tasks.finish_task])
def test_finished_task_starts_nothing_more(end: Callable[..., object]) -> None:
    world = World(TWO_TURNS)
    world.drive()
    world.answer(world.prompt("first"), "one")
    end(world.run.task, world.user)
    assert world.drive(2).state == "cancelled"
    assert world.prompts == ["One."]


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_sessions_stop_when_the_run_ends(state: str) -> None:
    code = 0 if state == "succeeded" else 1
    text = workflow([node("coder", "agent", prompt="Write it."), node("say", "shell", script="x")], ["coder > say"])
    world = World(text, Scripts(answer=lambda script: {"exit_code": code}))
    assert world.run_to_end().state == state
    assert {one.desired_state for one in world.run.task.sessions.all()} == {"stopped"}


def test_failed_run_stays_in_inbox_until_resumed() -> None:
    answers = iter([1, 0])
    ended: dict[str, int] = {}
    world = World(SHELL, Scripts(answer=lambda script: ended))
    ended["exit_code"] = next(answers)
    run = world.run_to_end()
    item = AttentionItem.objects.get(kind="workflow", resolved_at=None)
    assert "has failed" in item.what
    runs.retry_run(world.user, run)
    assert AttentionItem.objects.filter(kind="workflow", resolved_at=None).count() == 0
    ended["exit_code"] = next(answers)
    assert world.run_to_end().state == "succeeded"
    assert len(world.scripts.begun) == 2


def test_resume_keeps_finished_nodes_and_sessions() -> None:
    text = workflow([node("coder", "agent", prompt="Write it."), node("say", "shell", script="x")], ["coder > say"])
    ended = {"exit_code": 1}
    world = World(text, Scripts(answer=lambda script: ended))
    run = world.run_to_end()
    ended["exit_code"] = 0
    runs.retry_run(world.user, run)
    assert world.run_to_end().state == "succeeded"
    assert (len(world.agents), world.prompts) == (1, ["Write it."])
