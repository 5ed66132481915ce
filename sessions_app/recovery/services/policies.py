"""Change the recovery policies of sessions and teams."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import Group, User

from sessions_app.accounts.authorization import may_manage
from sessions_app.kernel.events.session import PolicyChanged
from sessions_app.kernel.services.errors import Invalid, ReadOnly
from sessions_app.models import TeamPolicy, session_transaction
from sessions_app.recovery.rules.resumability import Policy, effective_policy
from sessions_app.recovery.services.assessment import NO_CHOICE, deployment_policy, effective_policy_of, team_choice


def set_session_policy(session_id: uuid.UUID, values: Mapping[str, Any]) -> None:
    """Set a session's ``policy`` (empty: unset) or ``continue_prompts`` (None: unset).

    Raises Invalid for an unknown policy.
    """
    _validate(values)
    with session_transaction(session_id) as transaction:
        transaction.set_fields(**values)
        if transaction.changed_fields:
            effective = effective_policy_of(transaction.session)
            transaction.record_event(
                PolicyChanged(policy=effective.policy, source=str(effective.source), continues=effective.continues)
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
    own_choice = team_choice(team.pk)
    effective = effective_policy(NO_CHOICE, own_choice, deployment_policy())
    return {
        "team": team.pk,
        "policy": own_choice.policy,
        "continue_prompts": own_choice.continues,
        "effective": {
            "policy": effective.policy,
            "policy_source": str(effective.source),
            "continues": effective.continues,
        },
    }


def _validate(values: Mapping[str, Any]) -> None:
    if values.get("policy", "") not in ("", *Policy):
        raise Invalid(f"policy must be one of {', '.join(Policy)}, or empty.", field="policy")
