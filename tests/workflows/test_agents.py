"""Agent nodes: their prompts, their sessions, and how their answers are used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessions_app.workflows.engine.records import NodeState
from sessions_app.workflows.engine.resume import NothingToResume, records_to_resume
from sessions_app.workflows.engine.transitions import advance_run
from tests.services import ROOT
from tests.workflows.memory_runs import Agents, Run, counting, drive, manual_trigger
from tests.workflows.workflow_builder import TRIGGER, load_file, node, workflow

EXAMPLES = ROOT / "docs/examples/workflows"


def example(name: str, agents: Agents, text: str = "T") -> Run:
    return drive(load_file(EXAMPLES / f"{name}.yaml").checked, text, agents=agents)


@pytest.mark.parametrize("runner", ["claude-code", "codex", "openai"])
def test_loop_counts_from_42_to_52_in_one_session(runner: str) -> None:
    run = example(f"test-resumable-{runner}", Agents(counting))

    assert run.outcome.succeeded
    assert len(run.agents.prompts) == 1
    session_ids = [run[f"count[{index}]/counter"].request["sessionId"] for index in range(1, 11)]
    assert session_ids == ["", *["session-1"] * 9]
    assert run["count"].outputs["final"] == "52"


def test_each_run_starts_its_own_session() -> None:
    agents = Agents(counting)
    example("test-resumable-codex", agents)
    example("test-resumable-codex", agents)
    assert [len(prompts) for prompts in agents.prompts.values()] == [10, 10]


def test_original_example_runs_unchanged() -> None:
    """Its *continue* is wired to “approved”, so it ends when the reviewer does not approve."""
    agents = Agents(lambda prompts: '{"approved": false, "feedback": "no"}' if "Review" in prompts[0] else "work")
    run = example("test-resumable-agent", agents)
    assert run.outcome.succeeded
    assert run["loop"].outputs == {"iterations": 1, "terminationReason": "condition"}

    approving = Agents(
        lambda prompts: '{"approved": true, "feedback": ""}' if "Review" in prompts[0] else f"work {len(prompts)}"
    )
    run = example("test-resumable-agent", approving)
    assert run["loop"].outputs == {"iterations": 5, "terminationReason": "max_iterations"}
    assert approving.prompts["session-1"] == ["1", "work 1", "work 2", "work 3", "work 4"]
    assert [len(prompts) for prompts in approving.prompts.values()] == [5, 1, 1, 1, 1, 1]


def test_review_repeats_until_approved_with_feedback() -> None:
    def answer(prompts: list[str]) -> str:
        if "Review this work" not in prompts[0]:
            return f"version {len(prompts)}"
        verdict = {"approved": "version 3" in prompts[0], "feedback": "Better, please."}
        return f"Well.\n```json\n{json.dumps(verdict)}\n```"

    run = example("review-until-approved", Agents(answer), "Write a parser.")

    assert run["review"].outputs["iterations"] == 3
    assert run["review"].outputs["result"] == "version 3"
    assert run.agents.prompts["session-1"] == ["Write a parser.", "Better, please.", "Better, please."]


def test_one_session_continues_through_two_loops() -> None:
    says = ["draft", "reviewed", "reviewed", "tested"]
    run = example("pattern-a", Agents(lambda prompts: says[len(prompts) - 1]), "task")
    assert run.outcome.succeeded
    assert list(run.agents.prompts) == ["session-1"]
    assert run.agents.prompts["session-1"] == ["task", "task", *["Run the tests and fix what fails."] * 2]


def test_gate_sends_back_with_feedback_in_same_session() -> None:
    says = ["draft", "reviewed", "reviewed, tested"]
    run = example("pattern-b", Agents(lambda prompts: says[len(prompts) - 1]), "task")
    assert run.outcome.succeeded
    assert run.agents.prompts == {"session-1": ["task", "Say reviewed.", "These checks failed: tested."]}
    assert [run[path].state for path in ("gate", "gate#2", "gate#3")] == [
        NodeState.RETRIED,
        NodeState.RETRIED,
        NodeState.SUCCEEDED,
    ]
    assert run["done"].outputs["output"] == "after 2 retries"
    assert {"review#2", "test#3", "coder#3"} <= run.paths


def test_agent_gets_the_output_of_failing_tests_until_they_pass(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("test:\n\t@test -e fixed || { echo the parser is broken; exit 1; }\n")

    def answer(prompts: list[str]) -> str:
        if len(prompts) == 2:
            (tmp_path / "fixed").touch()
        return "done"

    workflow = load_file(EXAMPLES / "fix-until-tests-pass.yaml").checked
    run = drive(workflow, "Repair the parser.", agents=Agents(answer), cwd=tmp_path)
    assert run.outcome.succeeded
    first, second = run.agents.prompts["session-1"]
    assert first == "Repair the parser."
    assert "The tests fail. The end of their output: the parser is broken" in second


def test_resume_at_passed_gate_repeats_its_target() -> None:
    says = ["draft", "reviewed", "reviewed, tested"]
    run = example("pattern-b", Agents(lambda prompts: says[len(prompts) - 1]), "task")

    left = records_to_resume(run.workflow, run.records, "test#3")

    assert run.records.keys() - left.keys() == {"test#3", "gate#3", "done"}
    assert [one.path for one in advance_run(run.workflow, manual_trigger("task"), left).begun] == ["test#3"]
    for path in ("nothing", "test#9", "test/x"):
        with pytest.raises(NothingToResume):
            records_to_resume(run.workflow, run.records, path)


def test_gate_fails_after_its_retries() -> None:
    run = example("pattern-b", Agents(lambda prompts: "draft"), "task")
    assert run["gate#4"].state == NodeState.FAILED
    assert run["gate#4"].outputs["retry_count"] == 3
    assert run["done"].state == NodeState.SKIPPED
    assert "not passed after 3 retries" in run.outcome.error


@pytest.mark.parametrize(
    ("data", "edges", "text"),
    [
        ({"prompt": "Say {{ trigger.text }}"}, ["trigger > agent.go"], "Say T"),
        ({}, ["trigger.text > agent.prompt"], "T"),
        ({"prompt": "written"}, ["trigger.text > agent.prompt"], "T"),
        ({"prompt": "in: {{ inputs.prompt }}"}, ["trigger.text > agent.prompt"], "in: T"),
        ({"prompt": "written"}, ["nothing.value > agent.prompt"], "written"),
    ],
)
def test_received_prompt_replaces_written_prompt(data: dict[str, str], edges: list[str], text: str) -> None:
    nodes = [TRIGGER, node("nothing", "constant", value=None), node("agent", "agent", **data)]
    assert drive(workflow(nodes, edges)).agents.prompts == {"session-1": [text]}


def test_agent_without_prompt_fails() -> None:
    assert "no prompt" in drive(workflow([node("agent", "agent")])).outcome.error


SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}, "tags": {"type": "array"}}, "required": ["ok"]}


@pytest.mark.parametrize(
    ("answer", "outputs", "error"),
    [
        ('{"ok": true, "tags": ["a"]}', {"ok": True, "tags": ["a"]}, ""),
        ('Here:\n```json\n{"ok": false}\n```\nDone.', {"ok": False, "tags": None}, ""),
        ('I say {"ok": true} to that', {"ok": True}, ""),
        ('{"ok": "maybe"}', {}, "outputSchema"),
        ("no JSON", {"ok": None}, "contains no JSON"),
        ("[1]", {"ok": None}, "outputSchema"),
    ],
)
def test_answer_must_conform_to_schema(answer: str, outputs: dict[str, object], error: str) -> None:
    run = drive(
        workflow([node("agent", "agent", prompt="x", outputSchema=SCHEMA)]), agents=Agents(lambda prompts: answer)
    )
    assert error in run["agent"].error
    assert bool(error) is (run["agent"].state == NodeState.FAILED)
    assert outputs.items() <= run["agent"].outputs.items()
    assert run["agent"].outputs["sessionId"] == "session-1"


def test_invalid_answer_is_requested_again_in_same_session() -> None:
    says = ["Fine by me.", '{"ok": true}']
    agents = Agents(lambda prompts: says[len(prompts) - 1])
    run = drive(workflow([node("agent", "agent", prompt="x", outputSchema=SCHEMA)]), agents=agents)
    assert run["agent"].outputs["ok"] is True
    assert [len(prompts) for prompts in agents.prompts.values()] == [2]
    assert "contains no JSON" in agents.prompts["session-1"][1]


def test_session_passes_from_agent_to_agent() -> None:
    text = workflow(
        [node("first", "agent", prompt="Remember BLUE42."), node("second", "agent", prompt="What was it?")],
        ["first.sessionId > second.sessionId"],
    )
    run = drive(text, agents=Agents(lambda prompts: "BLUE42" if "BLUE42" in prompts[0] else "no idea"))
    assert run["second"].outputs["output"] == "BLUE42"
    assert len(run.agents.prompts) == 1
