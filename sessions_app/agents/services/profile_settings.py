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
from contextlib import suppress
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.utils.crypto import salted_hmac

from executors_app.encryption import SecretUnreadable
from executors_app.mcp_servers import check_mcp_servers
from executors_app.models import AgentProfile, check_env
from sessions_app.accounts.audit import record_change
from sessions_app.accounts.authorization import may_manage
from sessions_app.accounts.guarded_settings import SettingsRules, add_row, change_row, lock_row, set_row_disabled
from sessions_app.agents.services.profiles import visible_profiles
from sessions_app.kernel.rules.wording import describe_uses
from sessions_app.kernel.services.errors import Invalid, NotFound, ProfileInUse, ReadOnly
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


class _ProfileRules(SettingsRules[AgentProfile]):
    """The rules of agent profiles."""

    model = AgentProfile
    called = "agent profile"

    def fields_for(self, user: User, row: AgentProfile) -> Collection[str]:
        """Return what a user may change."""
        return fields_for(user, row)

    def version_of(self, row: AgentProfile) -> str:
        """Return what identifies the settings as they are now."""
        return version_of(row)

    def validate(self, row: AgentProfile) -> None:
        """Raise ValidationError for values that no profile may have."""
        row.full_clean(exclude=("env", "mcp_servers", "former_secrets", "team"))
        with suppress(SecretUnreadable):  # what nobody can read stays as it is
            check_env(row.env)
            check_mcp_servers(row.mcp_servers)


_RULES: Final = _ProfileRules()


def add_profile(values: Mapping[str, Any], by: User) -> AgentProfile:
    """Add a profile. Raises ReadOnly for anybody but staff, and Invalid."""
    if not by.is_staff:
        raise ReadOnly("Only administrators can add agent profiles.")
    return add_row(_RULES, AgentProfile(**values), by)


def change_profile(profile_id: uuid.UUID, values: Mapping[str, Any], version: str | None, by: User) -> AgentProfile:
    """Change the values of a profile, with ``version`` as it was shown.

    Raises NotFound, ReadOnly, SettingsChanged, Invalid.
    """
    return change_row(_RULES, profile_id, values, by, version)


def set_disabled(profile_id: uuid.UUID, by: User, *, disabled: bool) -> AgentProfile:
    """Let no new session use it, or let them again; its sessions go on. Raises NotFound, ReadOnly, DisabledByStaff."""
    return set_row_disabled(_RULES, profile_id, by, disabled=disabled)


def put_mcp_server(profile_id: uuid.UUID, server: Mapping[str, Any], version: str, by: User) -> AgentProfile:
    """Add an MCP server to a profile as it was shown, or replace the one of its name.

    Raises NotFound, ReadOnly, SettingsChanged, Invalid.
    """
    profile = AgentProfile.objects.filter(pk=profile_id).first()
    if profile is None:
        raise NotFound
    try:
        others = [each for each in profile.mcp_servers if each.get("name") != server["name"]]
    except SecretUnreadable as error:
        raise Invalid("Its MCP servers cannot be decrypted. Remove them first.") from error
    return change_profile(profile_id, {"mcp_servers": [*others, dict(server)]}, version, by)


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
        profile = lock_row(_RULES, profile_id)
        if not by.is_staff:
            raise ReadOnly("Only administrators can delete agent profiles.")
        uses = uses_of_profile(profile)
        if any(uses.values()):
            raise ProfileInUse(f"{profile.name} is used by {describe_uses(uses)}. Disable it instead.", **uses)
        record_change(by, profile, "Deleted.")
        profile.delete()
