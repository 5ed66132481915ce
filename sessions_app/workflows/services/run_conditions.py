"""What a workflow needs before it can be run: a repository, an executor and agents.

A valid text is not enough. Whoever starts it by hand is refused with the first obstacle; the editor shows the same
obstacle beforehand, and a schedule with one is not enabled, because it would promise runs that cannot happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from executors_app.models import AgentProfile, Executor
from executors_app.plugins import UnknownPlugin, runtime
from executors_app.runtimes import SupportsSharedWorktrees
from sessions_app.agents.services.profiles import enabled, profiles_of
from sessions_app.kernel.services.errors import Invalid, SessionsError, WorktreeNotShared
from sessions_app.models import Repository
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.language.limits import MAX_BYTES
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services.agent_choice import choose_agents, demo_agent_note
from sessions_app.workflows.services.run_records import node_types_of

WORKSPACE_NODE_TYPES: Final = frozenset({"shell", "agent"})
"""Node types that need a workspace."""
MAX_NODES_LISTED: Final = 5
"""Maximum number of nodes that an error names."""
FILES_LIMIT: Final = 4 << 20
"""Maximum total number of characters in all files of a workflow."""


def check_workplace(graph: WorkflowGraph, repository: Repository | None, executor: Executor | None) -> None:
    """Check that the nodes have a workspace where they can run.

    Raises Invalid without an executor or a repository that the nodes need, and WorktreeNotShared for an executor whose
    sessions cannot share one worktree.
    """
    if executor is None:
        raise Invalid("There is no executor yet. Ask staff to add one.", field="executor")
    if executor.disabled_at is not None:
        raise Invalid(f"The executor “{executor.name}” is disabled. Choose another one.", field="executor")
    working = node_types_of(graph) & WORKSPACE_NODE_TYPES
    if working and repository is None:
        names = " and ".join(sorted(working))
        raise Invalid(f"Its {names} steps need a workspace. Choose a repository.", field="repository")
    if "agent" in working and not _shares_worktrees(executor):
        raise WorktreeNotShared(
            f"The agents of a workflow share one worktree, which sessions on {executor.runtime} cannot do. "
            "Choose another executor; this one can only run workflows without agents.",
            runtime=executor.runtime,
        )


def check_agents(graph: WorkflowGraph, team_id: int, agent_profile: AgentProfile | None) -> str:
    """Check that each agent node has an agent: otherwise earlier nodes would spend money for a run that must fail.

    Returns a note about runners that the demo agent replaces; empty if there are none. Raises Invalid.
    """
    if "agent" not in node_types_of(graph):
        return ""
    if agent_profile is not None and agent_profile.disabled_at is not None:
        reason = f"The agent profile “{agent_profile.name}” is disabled. Choose another one."
        raise Invalid(reason, field="agent_profile")
    profiles = enabled(profiles_of(team_id)).order_by("name", "id")
    missing, demo_runners = choose_agents(graph, list(profiles), agent_profile)
    if missing:
        shown = " ".join(missing[:MAX_NODES_LISTED])
        raise Invalid(f"Agents are missing for this workflow. {shown}", field="agent_profile", problems=missing)
    return demo_agent_note(demo_runners)


def run_obstacle(
    graph: WorkflowGraph,
    *,
    team_id: int,
    repository: Repository | None,
    executor: Executor | None,
    agent_profile: AgentProfile | None,
) -> str:
    """Return what keeps everybody from running the workflow, as a sentence; empty if nothing does."""
    try:
        check_workplace(graph, repository, executor)
        check_agents(graph, team_id, agent_profile)
    except SessionsError as error:
        return error.message
    return ""


def disabled_since_start(run: WorkflowRun) -> str:
    """Return what an active run needs and was disabled since it started, and what follows; empty: nothing."""
    if run.ended_at is not None:
        return ""
    if run.executor.disabled_at is not None:
        return (
            f"The executor “{run.executor.name}” was disabled after this run had started, so its next step fails. "
            "Ask an administrator to enable it."
        )
    if run.agent_profile is not None and run.agent_profile.disabled_at is not None:
        return (
            f"The agent profile “{run.agent_profile.name}” was disabled after this run had started, so the next step "
            "that starts an agent with it fails. Ask an administrator to enable it."
        )
    return ""


def _shares_worktrees(executor: Executor) -> bool:
    try:
        return isinstance(runtime(executor.runtime), SupportsSharedWorktrees)
    except UnknownPlugin:
        return False


def check_size(text: str, files: Mapping[str, str]) -> None:
    """Check that text and files are not too large. Raises Invalid."""
    if "\0" in text or len(text.encode(errors="replace")) > MAX_BYTES:
        raise Invalid(f"The text is larger than {MAX_BYTES >> 10} KiB, or contains a zero byte.", field="text")
    for path, content in files.items():
        if not isinstance(path, str) or not isinstance(content, str) or "\0" in content:
            raise Invalid("Files must be an object of texts by path, without zero bytes.", field="files")
    if sum(map(len, files.values())) > FILES_LIMIT:
        raise Invalid(f"The files are larger than {FILES_LIMIT >> 20} MiB in total.", field="files")


def check_belongs_to_team(
    row: Workflow | WorkflowRun, repository: Repository | None, profile: AgentProfile | None
) -> None:
    """Check that the repository belongs to the team, and the profile to the team or to all teams."""
    if repository is not None and repository.team_id != row.team_id:
        raise Invalid("This repository belongs to another team.", field="repository")
    if profile is not None and profile.team_id not in (None, row.team_id):
        raise Invalid("This agent profile belongs to another team.", field="agent_profile")
