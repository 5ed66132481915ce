"""Add, change, disable and delete agent profiles.

Command, arguments, environment, directories, MCP servers and permissions of a profile decide what runs on a server and
with which secrets, so only staff write them. The admins of a profile's own team write what its members may choose for
each session anyway, or what only costs a turn.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.crypto import salted_hmac

from executors_app.encryption import SecretUnreadable
from executors_app.mcp_servers import check_mcp_servers
from executors_app.models import AgentProfile, check_env
from sessions_app.accounts.audit import record_change
from sessions_app.accounts.authorization import may_manage
from sessions_app.agents.services.profiles import visible_profiles
from sessions_app.kernel.rules.wording import describe_uses
from sessions_app.kernel.services.errors import Invalid, NotFound, ProfileInUse, ReadOnly, SettingsChanged
from sessions_app.models import TaskSession
from sessions_app.workflows.models import Workflow, WorkflowRun

TEAM_FIELDS: Final = ("name", "model", "mode", "background_policy", "memory_check")
"""What the admins of a profile's own team may change."""
STAFF_FIELDS: Final = (
    *TEAM_FIELDS,
    "permission_mode",
    "command",
    "args",
    "env",
    "mcp_servers",
    "secret_hosts",
    "additional_directories",
    "gone_patterns",
    "supports_session_resume",
    "history_context_injection",
)
"""What staff may change. Type and team never change: another team would get the secrets and the sessions."""
_SECRET: Final = ("env", "mcp_servers")


def listed_profiles(user: User) -> QuerySet[AgentProfile]:
    """Return the profiles that a user sees in the settings: staff all, others those that their teams can use."""
    rows = AgentProfile.objects.all() if user.is_staff else visible_profiles(user)
    return rows.select_related("team")


def fields_for(user: User, profile: AgentProfile) -> Collection[str]:
    """Return what a user may change of a profile; empty: nothing."""
    if user.is_staff:
        return STAFF_FIELDS
    if profile.team is not None and may_manage(user, profile.team):
        return TEAM_FIELDS
    return ()


def version_of(profile: AgentProfile) -> str:
    """Return what identifies the settings as they are now, and tells nothing about its secrets."""
    open_values = {name: getattr(profile, name) for name in STAFF_FIELDS if name not in _SECRET}
    try:
        secrets = json.dumps([getattr(profile, name) for name in _SECRET], sort_keys=True)
    except SecretUnreadable:
        secrets = "unreadable"
    digest = salted_hmac("agent profile", secrets, algorithm="sha256").hexdigest()
    return hashlib.sha256(json.dumps([open_values, digest], sort_keys=True).encode()).hexdigest()[:32]


def add_profile(values: Mapping[str, Any], by: User) -> AgentProfile:
    """Add a profile. Raises ReadOnly for anybody but staff, and Invalid."""
    if not by.is_staff:
        raise ReadOnly("Only administrators can add agent profiles.")
    profile = AgentProfile(**values)
    _check(profile)
    with transaction.atomic():
        profile.save(force_insert=True)
        record_change(by, profile, "Added.")
    return profile


def change_profile(profile_id: uuid.UUID, values: Mapping[str, Any], version: str, by: User) -> AgentProfile:
    """Change the values of a profile as it was shown. Raises NotFound, ReadOnly, SettingsChanged, Invalid."""
    with transaction.atomic():
        profile = _lock(profile_id)
        allowed = fields_for(by, profile)
        if not allowed or not set(values) <= set(allowed):
            raise ReadOnly("You may not change this of this agent profile.")
        if version_of(profile) != version:
            raise SettingsChanged
        changed = [name for name, value in values.items() if _differs(profile, name, value)]
        for name in changed:
            setattr(profile, name, values[name])
        _check(profile)
        if changed:
            profile.save(update_fields=changed)
            record_change(by, profile, f"Changed {', '.join(changed)}.")
    return profile


def _differs(profile: AgentProfile, name: str, value: Any) -> bool:
    try:
        return bool(getattr(profile, name) != value)
    except SecretUnreadable:
        return True


def set_disabled(profile_id: uuid.UUID, by: User, *, disabled: bool) -> AgentProfile:
    """Let no new session use it, or let them again; its sessions go on. Raises NotFound, ReadOnly."""
    with transaction.atomic():
        profile = _lock(profile_id)
        if not fields_for(by, profile):
            raise ReadOnly("You may not change this agent profile.")
        if (profile.disabled_at is not None) != disabled:
            profile.disabled_at = timezone.now() if disabled else None
            profile.save(update_fields=["disabled_at"])
            record_change(by, profile, "Disabled." if disabled else "Enabled.")
    return profile


def uses_of_profile(profile: AgentProfile) -> dict[str, int]:
    """Return how many sessions (also ended ones), workflows and workflow runs have a profile."""
    return {
        "sessions": TaskSession.objects.filter(agent_profile=profile).count(),
        "workflows": Workflow.objects.filter(agent_profile=profile).count(),
        "workflow_runs": WorkflowRun.objects.filter(agent_profile=profile).count(),
    }


def delete_profile(profile_id: uuid.UUID, by: User) -> None:
    """Delete a profile that nothing uses, with its secrets. Raises NotFound, ReadOnly, ProfileInUse."""
    with transaction.atomic():
        profile = _lock(profile_id)
        if not by.is_staff:
            raise ReadOnly("Only administrators can delete agent profiles.")
        uses = uses_of_profile(profile)
        if any(uses.values()):
            raise ProfileInUse(f"{profile.name} is used by {describe_uses(uses)}. Disable it instead.", **uses)
        record_change(by, profile, "Deleted.")
        profile.delete()


def _lock(profile_id: uuid.UUID) -> AgentProfile:
    profile = AgentProfile.objects.select_for_update().filter(pk=profile_id).first()
    if profile is None:
        raise NotFound
    return profile


def _check(profile: AgentProfile) -> None:
    """Raise Invalid, with the field, for values that no profile may have."""
    try:
        profile.full_clean(exclude=("env", "mcp_servers", "former_secrets", "team"))
        _check_secrets(profile)
    except ValidationError as error:
        if not hasattr(error, "error_dict"):
            raise Invalid(error.messages[0]) from error
        field, messages = next(iter(error.message_dict.items()))
        raise Invalid(messages[0], field=field) from error


def _check_secrets(profile: AgentProfile) -> None:
    try:
        check_env(profile.env)
        check_mcp_servers(profile.mcp_servers)
    except SecretUnreadable:
        return  # what nobody can read stays as it is
