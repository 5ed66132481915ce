"""Recovery policies of sessions, teams and the deployment: which is in effect, and changing them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db.models import Case, CharField, F, OuterRef, Subquery, Value, When
from django.db.models.functions import Coalesce

from sessions_app.accounts.authorization import may_manage
from sessions_app.kernel.events.session import PolicyChanged
from sessions_app.kernel.services.errors import Invalid, ReadOnly
from sessions_app.models import TaskSession, TeamPolicy, session_transaction
from sessions_app.recovery.rules.recovery_facts import EffectivePolicy, Policy, PolicyChoice, effective_policy

NO_CHOICE: Final = PolicyChoice()


def effective_policy_expression() -> Case:
    """Return an expression for queries of sessions: the policy in effect for each."""
    team = TeamPolicy.objects.filter(team=OuterRef("task__team")).exclude(policy="").values("policy")
    others = Coalesce(Subquery(team), Value(settings.KANDEV_RECOVERY_POLICY))
    return Case(When(policy="", then=others), default=F("policy"), output_field=CharField())


def effective_policy_of(session: TaskSession) -> EffectivePolicy:
    """Return the policy in effect for one session; one query, or none if the session sets both values."""
    own = PolicyChoice(session.policy, session.continue_prompts)
    if own.policy and own.continues is not None:
        return effective_policy(own, NO_CHOICE, deployment_policy())
    return effective_policy(own, team_choice(session.task.team_id), deployment_policy())


def deployment_policy() -> PolicyChoice:
    """Return the deployment's settings."""
    continues = {"on": True, "off": False}.get(settings.KANDEV_CONTINUE)
    return PolicyChoice(settings.KANDEV_RECOVERY_POLICY, continues)


def team_choice(team_id: int) -> PolicyChoice:
    """Return what one team has set."""
    return team_choices([team_id]).get(team_id, NO_CHOICE)


def team_choices(team_ids: Collection[int]) -> Mapping[int, PolicyChoice]:
    """Return what teams have set, by id; teams without settings may be missing. One query."""
    rows = TeamPolicy.objects.filter(team_id__in=set(team_ids))
    return {team: PolicyChoice(policy, continues) for team, policy, continues in rows.values_list("team_id", *_FIELDS)}


_FIELDS: Final = ("policy", "continue_prompts")


def set_session_policy(session_id: uuid.UUID, values: Mapping[str, Any]) -> None:
    """Set a session's ``policy`` (empty: unset) or ``continue_prompts`` (None: unset).

    Raises Invalid for an unknown policy.
    """
    _validate(values)
    with session_transaction(session_id) as transaction:
        transaction.set_fields(**values)
        if transaction.changed_fields:
            held = effective_policy_of(transaction.session)
            transaction.record_event(
                PolicyChanged(policy=held.policy, source=str(held.source), continues=held.continues)
            )


def set_team_policy(team: Group, values: Mapping[str, Any], by: User) -> TeamPolicy:
    """Set a team's policy. Raises Invalid, and ReadOnly unless ``by`` is staff or an admin of the team."""
    _validate(values)
    if not may_manage(by, team):
        raise ReadOnly("Only staff and the team’s admins can set its policy.")
    row, _ = TeamPolicy.objects.update_or_create(team=team, defaults={**values, "updated_by_id": by.pk})
    return row


def team_policy_json(team: Group) -> dict[str, Any]:
    """Return a team's own settings, and what is in effect for its sessions without settings."""
    said = team_choice(team.pk)
    held = effective_policy(NO_CHOICE, said, deployment_policy())
    return {
        "team": team.pk,
        "policy": said.policy,
        "continue_prompts": said.continues,
        "effective": {"policy": held.policy, "policy_source": str(held.source), "continues": held.continues},
    }


def _validate(values: Mapping[str, Any]) -> None:
    if values.get("policy", "") not in ("", *Policy):
        raise Invalid(f"policy must be one of {', '.join(Policy)}, or empty.", field="policy")
