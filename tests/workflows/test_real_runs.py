"""Workflows in a whole deployment: real supervisor, agentctls and shells, and agents that need no API key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.workflows.acceptance_cases import CASES
from tests.workflows.deployed_runs import DeployedWorkflows, Run, example
from tests.workflows.workflow_builder import node, workflow


@pytest.mark.parametrize("name", CASES)
def test_acceptance_case_has_expected_results(deployed: DeployedWorkflows, name: str) -> None:
    case = CASES[name]
    run = deployed.start(case.text, name=name)
    ended = run.wait_for_end()
    nodes = run.nodes()
    assert (ended["state"] == "succeeded") is case.succeeds, ended
    for path, outputs in case.outputs.items():
        assert outputs.items() <= nodes[path]["outputs"].items(), path
    for path, words in case.errors.items():
        assert words in (nodes[path]["error"] if path else ended["error"])
    assert not nodes.keys() & set(case.not_run)


def agent(deployed: DeployedWorkflows, name: str) -> str:
    """Return the agent profile for a runner; chat models have their own drills."""
    if name == "test-resumable-claude-code":
        return deployed.stand_in("claude-code", "claude_cli", "claude")
    return deployed.stand_in("codex", "codex_cli", "codex")


@pytest.mark.parametrize("runner", ["claude-code", "codex", "demo"])
def test_loop_counts_from_42_to_52_in_one_session(deployed: DeployedWorkflows, runner: str) -> None:
    """The first iteration creates one session, and the other nine continue it."""
    text = example(f"test-resumable-{'codex' if runner == 'demo' else runner}")
    if runner == "demo":
        text = text.replace("runner: codex", "runner: demo")
    profile = deployed.profile("demo") if runner == "demo" else agent(deployed, f"test-resumable-{runner}")
    run = deployed.start(text, name=f"counting with {runner}", profile=profile)
    ended = run.wait_for_end()
    assert ended["state"] == "succeeded", ended
    nodes = run.nodes()
    assert nodes["count"]["outputs"]["final"].strip() == "52"
    assert nodes["verify"]["outputs"]["exitCode"] == 0
    sessions = run.sessions()
    assert len(sessions) == 1
    counters = [nodes[f"count[{index}]/counter"] for index in range(1, 11)]
    assert counters[0]["inputs"].get("sessionId") in (None, "")
    assert {one["inputs"]["sessionId"] for one in counters[1:]} == {counters[0]["outputs"]["sessionId"]}
    assert len(run.prompts()) == 10
    assert all(row["state"] == "done" for row in run.prompts())


def test_agents_and_shells_share_one_worktree(deployed: DeployedWorkflows) -> None:
    run = deployed.start(
        """
version: 3
metadata: {name: one worktree}
nodes:
  - {id: one, type: agent, data: {runner: demo, prompt: write from-agent.txt hello}}
  - {id: two, type: agent, data: {runner: demo, prompt: write beside.txt hello}}
  - {id: look, type: shell, data: {script: "cat from-agent.txt beside.txt; touch from-shell.txt"}}
edges:
  - {source: one, target: look}
  - {source: two, target: look}
""",
        name="one worktree",
    )
    ended = run.wait_for_end()
    assert ended["state"] == "succeeded", ended
    assert run.nodes()["look"]["outputs"]["output"] == "hello\nhello"
    workspace, sessions = run.workspace(), run.sessions()
    assert [row["worktree_path"] for row in sessions] == [workspace["worktree_path"]] * 2
    assert {row["shares_worktree_of_id"] for row in sessions} == {workspace["id"]}
    assert Path(workspace["worktree_path"], "from-shell.txt").exists()
    assert not workspace["launch_id"]


VERDICT = '{"approved": %s, "feedback": "%s"}'


def loop_of(run: Run) -> dict[str, Any]:
    (found,) = (one for one in run.nodes().values() if one["kind"] == "loop")
    return dict(found["outputs"])


@pytest.mark.parametrize(
    ("approved", "iterations", "reason"), [("false", 1, "condition"), ("true", 5, "max_iterations")]
)
def test_original_example_runs_unchanged(
    deployed: DeployedWorkflows, approved: str, iterations: int, reason: str
) -> None:
    """Its *continue* is wired to “approved”, so it continues as long as the reviewer approves."""
    rules = [("Review", VERDICT % (approved, "no"))]
    profile = deployed.scripted(f"the seed {approved}", ["work"], rules, model="another")
    run = deployed.start(example("test-resumable-agent"), name=f"the seed, approved {approved}", profile=profile)
    ended = run.wait_for_end(300)
    assert ended["state"] == "succeeded", ended
    assert loop_of(run) == {"iterations": iterations, "terminationReason": reason}
    assert len(run.sessions()) == 1 + iterations
    models = (deployed.home / f"the-seed-{approved}" / "models").read_text().split()
    assert models == ["sonnet", *["haiku"] * iterations]


def test_review_repeats_until_approved_with_feedback(deployed: DeployedWorkflows) -> None:
    rules = [("version 3", VERDICT % ("true", "")), ("Review this work", VERDICT % ("false", "Better, please."))]
    profile = deployed.scripted("reviewed coder", ["version 1", "version 2", "version 3"], rules)
    run = deployed.start(example("review-until-approved"), "Write a parser.", name="review", profile=profile)
    ended = run.wait_for_end(300)
    assert ended["state"] == "succeeded", ended
    assert (loop_of(run)["iterations"], loop_of(run)["result"]) == (3, "version 3")
    coder = run.nodes()["review[1]/coder"]["session_id"]
    texts = [row["text"] for row in run.prompts() if row["session_id"] == coder.replace("-", "")]
    assert texts == ["Write a parser.", "Better, please.", "Better, please."]


def test_one_session_continues_through_two_loops(deployed: DeployedWorkflows) -> None:
    profile = deployed.scripted("pattern a", ["draft", "reviewed", "reviewed", "tested"])
    run = deployed.start(example("pattern-a"), "task", name="pattern a", profile=profile)
    ended = run.wait_for_end(300)
    assert ended["state"] == "succeeded", ended
    assert len(run.sessions()) == 1
    assert [row["text"] for row in run.prompts()] == ["task", "task", *["Run the tests and fix what fails."] * 2]


def test_gate_sends_back_with_feedback_in_same_session(deployed: DeployedWorkflows) -> None:
    profile = deployed.scripted("pattern b", ["draft", "reviewed", "reviewed, tested"])
    run = deployed.start(example("pattern-b"), "task", name="pattern b", profile=profile)
    ended = run.wait_for_end(300)
    assert ended["state"] == "succeeded", ended
    assert len(run.sessions()) == 1
    assert [row["text"] for row in run.prompts()] == ["task", "Say reviewed.", "These checks failed: tested."]
    assert run.nodes()["done"]["outputs"]["output"] == "after 2 retries"


def test_word_passes_between_agents_in_one_session(deployed: DeployedWorkflows) -> None:
    text = """
version: 2
metadata: {name: persistence}
nodes:
  - {id: first, type: agent, data: {runner: %s, prompt: remember the word BLUE42}}
  - {id: second, type: agent, data: {runner: %s, prompt: what was the word?}}
  - {id: verify, type: shell, data: {script: 'echo "{{ second.output }}" | grep -q BLUE42'}}
edges:
  - {source: first, target: second, sourceHandle: output:sessionId, targetHandle: input:sessionId}
  - {source: second, target: verify}
"""
    runs = []
    for runner in ("claude-code", "codex"):
        profile = agent(deployed, f"test-resumable-{runner}")
        runs.append(deployed.start(text % (runner, runner), name=f"persistence, {runner}", profile=profile))
    for run in runs:
        ended = run.wait_for_end()
        assert ended["state"] == "succeeded", ended
        assert len(run.sessions()) == 1


def test_independent_shells_run_concurrently(deployed: DeployedWorkflows) -> None:
    """Each waits until the others have started, which would never happen one after another."""
    wait = "touch {0}; while [ ! -e a ] || [ ! -e b ] || [ ! -e c ]; do sleep 0.1; done"
    shells = [node(name, "shell", script=wait.format(name)) for name in "abc"]
    ended = deployed.start(workflow(shells), name="side by side").wait_for_end()
    assert ended["state"] == "succeeded", ended


def test_finished_run_leaves_nothing_running(deployed: DeployedWorkflows) -> None:
    run = deployed.start(CASES["42 what could be a component runs alone"].text, name="quiet")
    run.wait_for_end()
    assert run.workspace()["desired_state"] == "stopped"
