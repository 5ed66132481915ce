"""``manage.py run_workflow`` runs a file to its end and reports the result in its exit status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.core.management.base import CommandError

from executors_app.machine.process import identity
from kandev.databases import EMBEDDED_NAME
from sessions_app.accounts.models import TeamRole
from sessions_app.catalogue.services.repositories import scratch_root
from sessions_app.models import Repository
from sessions_app.workflows import run_command
from sessions_app.workflows.language.files import find_workflow_file
from sessions_app.workflows.models import NodeRun, WorkflowRun
from tests import preloaded
from tests.drills.deployment import Deployment
from tests.executors.repositories import make_repository
from tests.migrated_database import copy_migrated
from tests.services import ROOT
from tests.supervisor.commands import environment
from tests.waiting import eventually

EXAMPLES = ROOT / "docs/examples/workflows"
COMPOSED = """\
{version: 3, metadata: {name: Told},
 nodes: [{id: start, type: trigger},
         {id: part, type: component, data: {workflowPath: part.yaml}}],
 edges: [{source: start, target: part, sourceHandle: "output:text", targetHandle: "input:text"}]}
"""
PART = """\
{version: 3, metadata: {name: Part}, interface: {inputs: [{name: text}], outputs: [{name: said}]},
 nodes: [{id: in, type: interface-input, data: {outputs: [{name: text}]}},
         {id: out, type: interface-output, data: {inputs: [{name: said}]}}],
 edges: [{source: in, target: out, sourceHandle: "output:text", targetHandle: "input:said"}]}
"""
NAMED = """\
{version: 3, metadata: {name: Named},
 nodes: [{id: start, type: trigger, data: {outputs: [{name: count, type: number, required: true}]}},
         {id: told, type: wire}],
 edges: [{source: start, target: told, sourceHandle: "output:count", targetHandle: "input:value"}]}
"""
FAILS = """\
{version: 3, metadata: {name: Fails}, edges: [],
 nodes: [{id: wrong, type: function, data: {code: "throw new Error('no')", outputs: [{name: x}]}}]}
"""


def command(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a command on its own embedded database, with a timeout for busy machines."""
    env = environment(directory)
    del env["KANDEV_DATABASE_URL"]
    return preloaded.run(["manage.py", *args], env=env, timeout=300)


@pytest.mark.embedded
def test_file_runs_without_server_and_prints_one_document(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name, text in (
        ("composed.yaml", COMPOSED),
        ("part.yaml", PART),
        ("fails.yaml", FAILS),
        ("bad.yaml", "nodes: ["),
        ("named.yaml", NAMED),
    ):
        (tmp_path / name).write_text(text)
    without = command(data, "run_workflow", str(tmp_path / "composed.yaml"))
    assert (without.returncode, "the database does not exist yet" in without.stderr) == (2, True)
    copy_migrated(data / EMBEDDED_NAME)
    assert command(data, "create_demo").returncode == 0

    done = command(data, "run_workflow", str(tmp_path / "composed.yaml"), "--input", "Hello", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["state"], document["trigger"], document["inputs"]["text"]) == ("succeeded", "command", "Hello")
    assert {node["state"] for node in document["nodes"]} == {"succeeded"}
    assert {"start", "part"} <= {node["path"] for node in document["nodes"]}
    assert "Hello" in document["outputs"].values()

    named = command(data, "run_workflow", str(tmp_path / "named.yaml"), "--set", "count=3", "--json")
    assert named.returncode == 0, named.stderr
    assert json.loads(named.stdout)["outputs"] == {"value": 3}
    for words, message in (
        (["--set", "count=many"], "The input “count”: “many” is not a number."),
        ([], "The input “count” is missing."),
    ):
        refused = command(data, "run_workflow", str(tmp_path / "named.yaml"), *words)
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr

    failed = command(data, "run_workflow", str(tmp_path / "fails.yaml"))
    assert (failed.returncode, "Fails: failed" in failed.stdout) == (1, True)
    assert "wrong: failed" in failed.stderr

    bad = command(data, "run_workflow", str(tmp_path / "bad.yaml"))
    assert (bad.returncode, "bad.yaml:" in bad.stderr, bad.stdout) == (2, True, "")


@pytest.mark.embedded
def test_shipped_examples_run_unchanged_on_a_fresh_installation(tmp_path: Path) -> None:
    """The demo agent stands in for missing agents; it approves in the reviewer's schema, so the loop continues."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    copy_migrated(data / EMBEDDED_NAME)
    assert command(data, "create_demo").returncode == 0
    done = command(data, "run_workflow", str(EXAMPLES / "test-resumable-agent.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    assert "“claude-code”, so the demo agent is used instead" in done.stderr
    nodes = {one["path"]: one for one in json.loads(done.stdout)["nodes"]}
    assert nodes["loop"]["outputs"] == {"iterations": 5, "terminationReason": "max_iterations"}
    assert len({one["session_id"] for one in nodes.values() if one["kind"] == "agent"}) == 6

    done = command(data, "run_workflow", str(EXAMPLES / "review-until-approved.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    reported = {one["path"]: one for one in json.loads(done.stdout)["nodes"]}
    assert reported["review"]["outputs"]["iterations"] == 1
    assert "haiku" in reported["review"]["outputs"]["result"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("cuont=3", "declares no input “cuont”; it has “count”"),
        ("count", "--set needs NAME=VALUE, not “count”"),
    ],
)
def test_invalid_input_exits_with_2(tmp_path: Path, value: str, text: str) -> None:
    (tmp_path / "named.yaml").write_text(NAMED)
    with pytest.raises(CommandError, match=text) as refused:
        call_command("run_workflow", str(tmp_path / "named.yaml"), "--set", value)
    assert refused.value.returncode == 2


@pytest.fixture
def team(db: None) -> Group:
    return Group.objects.create(name="team")


def member(team: Group, name: str, role: str = "") -> User:
    user = User.objects.create(username=name)
    user.groups.add(team)
    if role:
        TeamRole.objects.create(user=user, team=team, role=role)
    return user


def test_only_team_and_only_writer_need_not_be_named(team: Group) -> None:
    ada = member(team, "ada")
    member(team, "eve", TeamRole.Role.VIEWER)
    assert run_command.resolve_team("") == team
    assert run_command.resolve_user("", team) == ada


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda team: run_command.resolve_team("another"), "there is no team “another”"),
        (
            lambda team: run_command.resolve_user("", team),
            "2 users have write access in the team; choose one with --user",
        ),
        (lambda team: run_command.resolve_user("zoe", team), "there is no user “zoe”"),
        (lambda team: run_command.resolve_profile("none", team), "there is no agent profile “none”"),
        (lambda team: run_command.resolve_executor("none"), "there is no executor “none”"),
        (
            lambda team: run_command.resolve_repository(team, Path("/proc"), Path("x.yaml")),
            "/proc is not in a git repository",
        ),
    ],
)
def test_ambiguous_or_missing_arguments_exit_with_2(team: Group, ask: Any, words: str) -> None:
    member(team, "ada")
    member(team, "bob")
    with pytest.raises(CommandError, match=words) as refused:
        ask(team)
    assert refused.value.returncode == 2


def test_repository_in_which_agents_are_tested_is_not_the_only_one(team: Group) -> None:
    only = Repository.objects.create(name="app", team=team, path="/srv/app")
    Repository.objects.create(name="Agent tests", team=team, path=f"{scratch_root()}/one")
    assert run_command.resolve_repository(team, None, Path("/x.yaml")) == only


@pytest.mark.parametrize("given", [".", "sub", "../repository", "../link"])
def test_repository_can_be_given_by_a_relative_path(
    team: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    repository = make_repository(tmp_path / "repository")
    (repository / "sub").mkdir()
    (tmp_path / "link").symlink_to(repository)
    monkeypatch.chdir(repository)
    found = run_command.resolve_repository(team, Path(given), Path("x.yaml"))
    assert found is not None
    assert found.path == str(repository.resolve())
    assert run_command.resolve_repository(team, Path(given), Path("x.yaml")) == found


def test_tree_shows_each_node_in_its_iteration() -> None:
    paths = ("start", "loop", "loop[1]", "loop[1]/coder", "loop[2]", "loop[2]/coder")
    nodes = [NodeRun(path=path, node=path, state="succeeded") for path in paths]
    nodes[-1].state, nodes[-1].waiting_for = "running", "user"
    tree = run_command.run_tree(WorkflowRun(name="Mend", state="running"), nodes)
    loop = tree.children[1]
    assert ["loop[" in str(child.label) for child in loop.children] == [True, True]
    assert "waiting for you in session" in str(loop.children[1].children[0].label)


def test_bare_name_is_searched_in_the_project(tmp_path: Path) -> None:
    (tmp_path / "package.json").touch()
    shelf = tmp_path / "workflows"
    shelf.mkdir()
    (shelf / "told.yml").touch()
    below = tmp_path / "src"
    below.mkdir()
    assert find_workflow_file(Path("told"), below) == shelf / "told.yml"
    for another in (Path("untold"), Path("told.yaml"), Path("workflows/told")):
        assert find_workflow_file(another, below) == another


PLACED = """\
{version: 3, metadata: {name: Placed}, edges: [],
 nodes: [{id: place, type: shell, data: {script: "cat README.md; pwd; git branch --show-current"}}]}
"""
PROFILE = """
from executors_app.models import AgentProfile
AgentProfile.objects.create(name="demo", agent_type="demo")
"""
WAITS = """\
{version: 3, metadata: {name: Waits}, edges: [],
 nodes: [{id: wait, type: shell, data: {script: "echo begun; exec sleep 600"}}]}
"""


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Yield a deployment with an agent profile, whose server is not running."""
    made = Deployment(tmp_path)
    made.prepare()
    assert made.manage("shell", "-v", "0", "-c", PROFILE).returncode == 0
    yield made
    made.close()


@pytest.mark.embedded
def test_scripts_run_in_worktree_of_named_repository(deployment: Deployment) -> None:
    file = deployment.home / "placed.yaml"
    file.write_text(PLACED)
    done = deployment.manage("run_workflow", str(file), "--cwd", str(deployment.repository), "--json")
    assert done.returncode == 0, done.stdout
    [node] = json.loads(done.stdout)["nodes"]
    title, place, branch = node["outputs"]["stdout"].split("\n")[:3]
    assert title == "# Drill"
    assert Path(place).is_relative_to(deployment.data)
    assert branch.startswith("kandev/")


@pytest.mark.embedded
def test_ctrl_c_cancels_run_and_its_processes(deployment: Deployment) -> None:
    file = deployment.home / "waits.yaml"
    file.write_text(WAITS)
    argv = [sys.executable, "manage.py", "run_workflow", str(file), "--cwd", str(deployment.repository)]
    with subprocess.Popen(argv, cwd=ROOT, env=deployment.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        tails = "SELECT output_tail FROM workflow_node_runs"
        eventually(lambda: "begun" in str(deployment.rows(tails)), timeout=60, describe="the script runs")
        [execution] = deployment.agentctls.iterdir()
        assert identity.find_marked(execution.name)

        run.send_signal(signal.SIGINT)

        output = run.communicate(timeout=60)[0].decode()
    assert run.returncode == 1, output
    assert "Waits: cancelled" in output
    eventually(lambda: not identity.find_marked(execution.name), describe="no process of the run is left")
