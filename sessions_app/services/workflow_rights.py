"""Who may have a workflow run, with whose rights, and where.

A run has the rights of one person: of whoever starts it, resumes it or runs it again, and of whoever enabled its
triggers where nobody asks for it. They are checked when the run is made, and again before each node that works.
"""

from __future__ import annotations

from typing import Any, Final

from executors_app.models import Executor
from executors_app.plugins import UnknownPlugin
from sessions_app.models import TeamRole
from sessions_app.services.rights import may_write
from sessions_app.services.workflow_rows import kinds_of
from sessions_app.workflows.graph import Workflow as Graph

UNISOLATED: Final = (
    "Shell nodes on “{place}” run beside the control plane: that takes staff, or a team that was given "
    "operate_unisolated."
)


def place_of(named: Executor | None) -> Executor | None:
    """The executor that was named, else the one on this machine, else the first there is."""
    places = Executor.objects.order_by("name")
    return named or places.filter(runtime="local_standalone").first() or places.first()


def allowed(user: Any, team: Any, executor: Executor, graph: Graph) -> bool:
    """Whether ``user`` may have ``graph`` run on ``executor``: shell nodes where nothing is isolated want more.

    That ``user`` may write in ``team`` at all is asked by ``rights.may_write``.
    """
    return bool(user is not None and user.is_staff) or not _wants_trust(team, executor, graph)


def refusal(user: Any, team: Any, executor: Executor | None, graph: Graph) -> str:
    """Why ``user`` may not have ``graph`` run for ``team`` now, as a sentence; empty where it is allowed."""
    if user is None:
        return "The account with whose rights it runs was deleted."
    name = user.get_username()
    if not user.is_active:
        return f"{name} no longer has an active account."
    if not may_write(user, team):
        return f"{name} is not a member of the team who may write."
    if executor is None:
        return "There is no executor yet. Staff can add one."
    if not allowed(user, team, executor, graph):
        return f"{UNISOLATED.format(place=executor.name)} {name} is not staff."
    return ""


def who_may(team: Any, executor: Executor | None, graph: Graph | None) -> str:
    """Whose rights suffice for a run, as a sentence."""
    if executor is not None and graph is not None and _wants_trust(team, executor, graph):
        return (
            f"A member of the team who is staff can do that, because its shell nodes run on “{executor.name}” beside "
            "the control plane."
        )
    return "Any member of the team who is not a viewer can do that."


def _wants_trust(team: Any, executor: Executor, graph: Graph) -> bool:
    """Whether a member of the team needs to be staff: it has scripts, nothing isolates them, nobody trusts the team."""
    if "shell" not in kinds_of(graph):
        return False
    try:
        if not executor.trusted_agents_only:
            return False
    except UnknownPlugin:
        return True  # nobody knows whether it isolates anything
    given = team.permissions.filter(codename="operate_unisolated")
    return not given.filter(content_type__app_label=TeamRole._meta.app_label).exists()
