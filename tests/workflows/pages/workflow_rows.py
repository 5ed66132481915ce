"""A workflow of Ada's team, and a run of it after some steps."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from sessions_app.models import TaskSession
from sessions_app.workflows.models import NodeRun, Workflow, WorkflowRun
from sessions_app.workflows.services.runs import start_saved_run
from sessions_app.workflows.services.workflows import save_workflow
from tests.pages.world import World

TEXT = """\
# A loop around an agent, then a check.
version: 3
metadata: { name: Mend and check }
nodes:
  - id: trigger
    type: trigger
    data: { label: Start }
  - id: loop
    type: loop
    data:
      label: Review loop
      maxIterations: 3
      inputs: [{ name: task, type: string }]
      dockSlots: [{ name: continue, type: continue, negate: true }]
  - id: coder
    type: agent
    parentId: loop
    data:
      label: Coder   # its name stays
      prompt: "Mend {{ inputs.task }}"
      inputs: [{ name: task }]
  - id: approved
    type: constant
    parentId: loop
    data: { label: Approved, value: false, valueType: boolean }
  - id: end
    type: wire
    data: { label: Tell }
edges:
  - { source: trigger, target: loop, sourceHandle: output:text, targetHandle: input:task }
  - { source: loop, target: coder, sourceHandle: input:task:internal, targetHandle: input:task }
  - { source: coder, target: approved }
  - { source: approved, target: loop, sourceHandle: output:value, targetHandle: dock:continue:input }
  - { source: loop, target: end, sourceHandle: output:iterations, targetHandle: input:value }
"""
PLAIN = """\
version: 3
metadata: { name: Plain }
nodes:
  - { id: trigger, type: trigger, data: { label: Start } }
  - { id: told, type: wire, data: { label: Told } }
edges:
  - { source: trigger, target: told, sourceHandle: output:text, targetHandle: input:value }
"""


def make_workflow(world: World, text: str = TEXT, name: str = "Mend and check", **values: Any) -> Workflow:
    """Create a workflow of Ada's team."""
    given = {"team": world.team, "name": name, "text": text, "repository": world.repository, **values}
    return save_workflow(world.ada, given)[0]


def make_run(world: World, workflow: Workflow | None = None, state: str = "running", **values: Any) -> WorkflowRun:
    """Create a run that no supervisor drives."""
    workflow = workflow or make_workflow(world)
    run, _ = start_saved_run(world.ada, workflow, {"text": "the fence"})
    WorkflowRun.objects.filter(id=run.id).update(state=state, started_at=timezone.now(), **values)
    run.refresh_from_db()
    return run


def ran(run: WorkflowRun, path: str, state: str = "succeeded", **values: Any) -> NodeRun:
    """Record one execution of a node."""
    node = path.rpartition("/")[2].partition("[")[0].partition("#")[0]
    given = {"kind": "wire", "node": node, "state": state, "started_at": timezone.now(), **values}
    return NodeRun.objects.create(run=run, path=path, position=run.node_runs.count(), **given)


def looped_run(world: World, session: TaskSession | None = None, state: str = "running") -> WorkflowRun:
    """Create a run whose agent is in its second iteration and needs a decision."""
    run = make_run(world, state=state)
    ran(run, "trigger", kind="trigger", outputs={"text": "the fence"})
    ran(run, "loop", "running", kind="loop", inputs={"task": "the fence"})
    ran(run, "loop[1]", kind="iteration", iteration=1)
    ran(run, "loop[1]/coder", kind="agent", inputs={"task": "the fence"}, outputs={"output": "I mended <it>"})
    ran(run, "loop[1]/approved", kind="constant", outputs={"value": False})
    ran(run, "loop[2]", "running", kind="iteration", iteration=2)
    more = {"session": session} if session else {}
    ran(run, "loop[2]/coder", "running", kind="agent", waiting_for="user", inputs={"task": "again"}, **more)
    return run
