"""Admin of users, teams, roles, login links, attempt counters, API tokens and preferences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.forms import AdminUserCreationForm, UserChangeForm
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from rest_framework.authtoken import admin as authtoken_admin
from rest_framework.authtoken.models import TokenProxy

from executors_app.staff_admin import ReadOnlyModelAdmin, StaffModelAdmin
from sessions_app.accounts.models import ApiToken, AttemptCount, LoginLink, Preferences, TeamRole
from sessions_app.accounts.teams import check_user_name
from sessions_app.kernel.rules.wording import plural

if TYPE_CHECKING:
    Inline = admin.TabularInline[Any, Any]
    People = UserAdmin[User]
else:
    Inline = admin.TabularInline
    People = UserAdmin

for _model in (User, Group):
    admin.site.unregister(_model)


class _UserNameCheckMixin:
    """A form that checks a new user name for look-alikes."""

    def clean_username(self) -> str:
        """Refuse a changed name that looks like that of another account."""
        form: Any = self
        above: Any = super()
        if hasattr(above, "clean_username"):
            name = str(above.clean_username())
        else:
            name = str(form.cleaned_data["username"])
        if "username" in form.changed_data:
            try:
                check_user_name(name, form.instance.pk)
            except ValidationError as error:
                raise ValidationError(error.messages) from None
        return name


class AccountCreationForm(_UserNameCheckMixin, AdminUserCreationForm):  # type: ignore[type-arg]
    """The form for a new account."""


class AccountChangeForm(_UserNameCheckMixin, UserChangeForm):  # type: ignore[type-arg]
    """The form for an existing account."""


@admin.register(User)
class AccountAdmin(People):
    """User accounts. They are deactivated, never deleted, because the log refers to who requested what.

    Django's own permissions apply here, and not staff status alone, because whoever edits users can make them staff.
    """

    list_filter = ("is_staff", "is_superuser", "is_active", "groups")
    form = AccountChangeForm
    add_form = AccountCreationForm

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: accounts are deactivated, never deleted."""
        return False


class MemberInline(Inline):
    """The members of a team."""

    model = User.groups.through
    extra = 0
    verbose_name = "member"
    autocomplete_fields = ("user",)


class TeamRoleInline(Inline):
    """Members with another role than *member*."""

    model = TeamRole
    extra = 0
    autocomplete_fields = ("user",)


@admin.register(Group)
class TeamAdmin(GroupAdmin):
    """Teams, which are groups of users. Django's own permissions apply here, as for users."""

    list_display = ("name", "members", "viewers")
    inlines = (MemberInline, TeamRoleInline)

    def view_on_site(self, team: Group) -> str:
        """Return the team's page in the settings."""
        return reverse("settings-team", args=[team.pk])

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        """Return the teams with their numbers of members and viewers."""
        rows: QuerySet[Group] = super().get_queryset(request)
        viewers = Q(roles__role=TeamRole.Role.VIEWER)
        return rows.annotate(
            members=Count("user", distinct=True), viewers=Count("roles", filter=viewers, distinct=True)
        )

    @admin.display(ordering="members")
    def members(self, team: Any) -> int:
        """Return the number of members."""
        return int(team.members)

    @admin.display(ordering="viewers")
    def viewers(self, team: Any) -> int:
        """Return the number of viewers."""
        return int(team.viewers)


@admin.register(TeamRole)
class TeamRoleAdmin(StaffModelAdmin):
    """Viewers and admins of teams. A member without a row here can write."""

    list_display = ("user", "team", "role", "in_team")
    list_filter = ("role", "team")
    list_select_related = ("user", "team")
    search_fields = ("user__username", "team__name")
    fields = ("user", "team", "role")

    def get_queryset(self, request: HttpRequest) -> QuerySet[TeamRole]:
        """Return the roles, with the teams of their users."""
        rows: QuerySet[TeamRole] = super().get_queryset(request)
        return rows.prefetch_related("user__groups")

    @admin.display(boolean=True, description="in the team")
    def in_team(self, row: TeamRole) -> bool:
        """Return whether the user is in the team; a role alone gives no rights."""
        return row.team in row.user.groups.all()


@admin.register(AttemptCount)
class AttemptCountAdmin(ReadOnlyModelAdmin):
    """Counters of attempts. They do not show who made them, because keys are hashes."""

    list_display = ("key", "tries", "ends_at")
    search_fields = ("=key",)
    date_hierarchy = "ends_at"


@admin.register(LoginLink)
class LoginLinkAdmin(ReadOnlyModelAdmin):
    """One-time login links, without their secrets."""

    hidden = ("secret_hash",)
    list_display = ("user", "purpose", "made_by", "expires_at", "used_at")
    list_filter = (("used_at", admin.EmptyFieldListFilter),)
    list_select_related = ("user", "made_by")
    search_fields = ("user__username",)
    date_hierarchy = "expires_at"


assert authtoken_admin  # noqa: S101 - authtoken registers itself; its table stays empty, as tokens are taken over
admin.site.unregister(TokenProxy)


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyModelAdmin):
    """API tokens: owner, purpose and expiry. The tokens themselves are not stored."""

    actions = ("revoke",)
    hidden = ("secret_hash",)
    list_display = ("name", "user", "scope", "begins_with", "created_at", "expires_at", "last_used_at", "is_live")
    list_filter = ("scope", ("revoked_at", admin.EmptyFieldListFilter))
    list_select_related = ("user",)
    search_fields = ("name", "user__username", "begins_with")
    date_hierarchy = "created_at"

    @admin.display(boolean=True, description="live")
    def is_live(self, token: ApiToken) -> bool:
        """Return whether the token can be used."""
        return not token.is_over and token.user.is_active

    @admin.action(description="Revoke selected tokens")
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiToken]) -> None:
        """Revoke the selected tokens."""
        count = chosen.filter(revoked_at=None).update(revoked_at=timezone.now())
        messages.success(request, plural(count, "1 token was revoked.", "{} tokens were revoked."))


@admin.register(Preferences)
class PreferencesAdmin(ReadOnlyModelAdmin):
    """Themes and time zones that users have chosen."""

    list_display = ("user", "theme", "time_zone")
    list_filter = ("theme",)
    list_select_related = ("user",)
    search_fields = ("user__username",)
