"""Decide who may run a workflow, and on which executor."""

from __future__ import annotations

from typing import Final

from django.contrib.auth.models import Group, User

from executors_app.models import Executor
from executors_app.plugins import UnknownPlugin
from executors_app.wire.executions import LOCAL
from sessions_app.accounts.authorization import is_trusted, may_write
from sessions_app.catalogue.services import offers
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.services.run_records import node_types_of

UNISOLATED_REFUSAL: Final = (
    "Shell steps on “{place}” run beside the control plane without isolation. This requires staff, or a team with the "
    "permission operate_unisolated."
)


def default_executor(named: Executor | None) -> Executor | None:
    """Return the named executor, or else one of this machine, or else the default.

    Of several on this machine the default or the oldest, so that another one changes nothing.
    """
    if named is not None:
        return named
    chosen = offers.default_executor()
    if chosen is None or chosen.runtime == LOCAL:
        return chosen
    return offers.offered_executors().filter(runtime=LOCAL).order_by("created_at", "id").first() or chosen


def run_refusal(user: User | None, team: Group, executor: Executor | None, graph: WorkflowGraph) -> str:
    """Return why ``user`` may not run ``graph`` for ``team`` now, as a sentence; empty if it is allowed."""
    if user is None:
        return "The account whose rights it has was deleted."
    name = user.get_username()
    if not user.is_active:
        return f"{name} no longer has an active account."
    if not may_write(user, team):
        return f"{name} does not have write access in the team."
    if executor is None:
        return "There is no executor yet. Ask staff to add one."
    if executor.disabled_at is not None:
        return f"The executor “{executor.name}” is disabled. Choose another one."
    if not user.is_staff and _requires_staff(team, executor, graph):
        return f"{UNISOLATED_REFUSAL.format(place=executor.name)} {name} is not staff."
    return ""


def describe_required_rights(team: Group, executor: Executor | None, graph: WorkflowGraph | None) -> str:
    """Return a sentence that names who has the rights for a run; without a graph, that nobody can start one."""
    if graph is None:
        return "Correct the text first."
    if executor is not None and _requires_staff(team, executor, graph):
        return (
            f"A member of the team who is staff can confirm it, because its shell steps run on “{executor.name}” "
            "beside the control plane."
        )
    return "Any member of the team with write access can confirm it."


def _requires_staff(team: Group, executor: Executor, graph: WorkflowGraph) -> bool:
    """Return whether only staff may run it: it has scripts without isolation, and the team is not trusted."""
    if "shell" not in node_types_of(graph):
        return False
    try:
        if not executor.trusted_agents_only:
            return False
    except UnknownPlugin:
        return True  # it is unknown whether the runtime isolates anything
    return not is_trusted(team)
