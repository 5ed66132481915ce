"""Shell nodes through the driver, the real client and a real agentctl."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executors_app.machine.process import identity
from sessions_app.workflows.models import WorkflowRun
from sessions_app.workflows.services import runs
from tests.agentctl.processes import REAL, Place
from tests.waiting import eventually
from tests.workflows.run_world import World
from tests.workflows.test_shell_script import VALUES
from tests.workflows.workflow_builder import node, workflow

pytestmark = pytest.mark.django_db

DEADLINE = 120


@pytest.fixture
def agentctl(tmp_path: Path) -> Iterator[Place]:
    """Yield a workspace served by an agentctl in its own process."""
    place = Place(tmp_path)
    with place.agentctl(REAL):
        yield place


def world_of(place: Place, text: str, **values: Any) -> World:
    """Return a run in that workspace."""
    client: Any = place.client()
    return World(text, client, **values)


def ended(world: World) -> WorkflowRun:
    """Return the run once it has ended."""

    def look() -> WorkflowRun | None:
        run = world.drive()
        return run if run.is_over else None

    run = eventually(look, DEADLINE, "the run has ended")
    assert run is not None
    return run


def pid_in(path: Path) -> identity.ProcessIdentity:
    """Return the live process whose id a script wrote into a file."""
    found = identity.identify(int(eventually(lambda: path.exists() and path.read_text().strip(), DEADLINE, path.name)))
    assert found is not None
    return found


def test_values_are_never_executed(agentctl: Place) -> None:
    nodes, edges = [], []
    for number, value in enumerate(VALUES.values()):
        nodes.append(node(f"value{number}", "constant", valueType="string", value=value))
        script = f'echo {{{{ inputs.x }}}} >bare{number}; echo "{{{{ inputs.x }}}}" >quoted{number}'
        script += f"; printf '%s\\n' \"$INPUT_X\" >named{number}"
        nodes.append(node(f"say{number}", "shell", script=script, inputs=["x"]))
        edges.append(f"value{number}.value > say{number}.x")

    run = ended(world_of(agentctl, workflow(nodes, edges)))

    assert (run.state, run.error) == ("succeeded", "")
    for number, value in enumerate(VALUES.values()):
        assert (agentctl.workspace / f"named{number}").read_text() == f"{value}\n"
    made = {path.name.rstrip("0123456789") for path in agentctl.workspace.iterdir()}
    assert made == {"bare", "quoted", "named"}, "no value was executed"


def test_exit_codes_and_extracted_outputs_are_returned(agentctl: Place) -> None:
    outputs = [
        {"name": "number", "type": "number", "extract": {"type": "regex", "pattern": "n=([0-9]+)"}},
        {"name": "deep", "extract": {"type": "json_path", "pattern": "$.a.b[1]"}},
    ]
    text = workflow(
        [
            node("fails", "shell", script="echo partly; echo why >&2; exit 7", continueOnFailure=True),
            node("regex", "shell", script="echo x n=42 y", outputs=outputs[:1]),
            node("json", "shell", script='echo \'{"a": {"b": [1, "two"]}}\'', outputs=outputs[1:]),
            node(
                "after",
                "shell",
                script="echo {{ fails.exitCode }} {{ fails.stderr }} {{ regex.number }} {{ json.deep }}",
            ),
        ],
        ["fails > after", "regex.number > after.a", "json.deep > after.b"],
    )

    world = world_of(agentctl, text)
    run = ended(world)

    assert (run.state, world["fails"].state, world["after"].state) == ("failed", "failed", "succeeded")
    assert "exit code 7" in world["fails"].error
    assert world["after"].outputs["output"] == "7 why 42 two"


@pytest.mark.any_database
@pytest.mark.parametrize("end", ["timeout", "cancel"])
def test_stopped_script_ends_with_its_children(agentctl: Place, end: str) -> None:
    script = "setsid sh -c 'echo $$ >left; exec sleep 3600' & echo said; sleep 3600"
    text = workflow([node("say", "shell", script=script, timeout=15 if end == "timeout" else 600)])
    world = world_of(agentctl, text)
    eventually(lambda: world.drive() and (agentctl.workspace / "left").exists(), DEADLINE, "the script has begun")
    left = pid_in(agentctl.workspace / "left")
    if end == "cancel":
        runs.cancel_run(world.user, world.run)

    run = ended(world)

    assert run.state == ("cancelled" if end == "cancel" else "failed")
    if end == "timeout":
        assert "longer than 15 s" in world["say"].error
    assert eventually(lambda: not identity.is_alive(left), DEADLINE)


def test_killed_agentctl_fails_node_and_repeats_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    text = workflow([node("say", "shell", script="echo ran >>times; echo $$ >pid; sleep 3600")])
    with place.agentctl(REAL) as process:
        world = world_of(place, text)
        eventually(lambda: world.drive() and (place.workspace / "pid").exists(), DEADLINE, "the script has begun")
        script = pid_in(place.workspace / "pid")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert eventually(lambda: not identity.is_alive(script), DEADLINE)
        assert not world.drive(2).is_over, "an unreachable agentctl may answer later"

    with place.agentctl(REAL):
        client: Any = place.client()
        world.drivers.clear()
        world.scripts = client
        run = ended(world)
    assert run.state == "failed"
    assert "not run again automatically" in world["say"].error
    assert (place.workspace / "times").read_text() == "ran\n"
