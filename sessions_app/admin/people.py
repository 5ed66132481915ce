"""Who may come in, and what they may do: users, teams, roles, login links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.forms import AdminUserCreationForm, UserChangeForm
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest

from executors_app.staff_admin import ReadOnly, StaffOnly
from sessions_app.models import AttemptCount, LoginLink, TeamRole
from sessions_app.services.user_names import check_user_name

if TYPE_CHECKING:
    Inline = admin.TabularInline[Any, Any]
    People = UserAdmin[User]
else:
    Inline = admin.TabularInline
    People = UserAdmin

for _model in (User, Group):
    admin.site.unregister(_model)


class _CheckedName:
    """A form whose user name, where it is new, looks like no other."""

    def clean_username(self) -> str:
        """Refuse one that does."""
        form: Any = self
        above: Any = super()
        name = str(above.clean_username() if hasattr(above, "clean_username") else form.cleaned_data["username"])
        if "username" in form.changed_data:
            try:
                check_user_name(name, form.instance.pk)
            except ValidationError as error:
                raise ValidationError(error.messages) from None
        return name


class NewPersonForm(_CheckedName, AdminUserCreationForm):  # type: ignore[type-arg]
    """A new account."""


class PersonForm(_CheckedName, UserChangeForm):  # type: ignore[type-arg]
    """An account."""


@admin.register(User)
class PersonAdmin(People):
    """People. One who leaves is made inactive, never deleted: the log names who asked for what.

    Django's own permissions stand here, for whoever edits people can make staff.
    """

    list_filter = ("is_staff", "is_superuser", "is_active", "groups")
    form = PersonForm
    add_form = NewPersonForm

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False


class Members(Inline):
    """Who is in a team."""

    model = User.groups.through
    extra = 0
    verbose_name = "member"
    autocomplete_fields = ("user",)


class Roles(Inline):
    """Members who are not full members."""

    model = TeamRole
    extra = 0
    autocomplete_fields = ("user",)


@admin.register(Group)
class TeamAdmin(GroupAdmin):
    """Teams: a group of users is a team. Django's own permissions stand here, as for people."""

    list_display = ("name", "members", "viewers")
    inlines = (Members, Roles)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        """With the number of members, and of those who only read."""
        rows: QuerySet[Group] = super().get_queryset(request)
        viewers = Q(roles__role=TeamRole.Role.VIEWER)
        return rows.annotate(
            members=Count("user", distinct=True), viewers=Count("roles", filter=viewers, distinct=True)
        )

    @admin.display(ordering="members")
    def members(self, team: Any) -> int:
        """How many are in it."""
        return int(team.members)

    @admin.display(ordering="viewers")
    def viewers(self, team: Any) -> int:
        """How many of them only read."""
        return int(team.viewers)


@admin.register(TeamRole)
class TeamRoleAdmin(StaffOnly):
    """Who only reads in which team, and who looks after one. Without a row here a member of a team writes."""

    list_display = ("user", "team", "role", "in_team")
    list_filter = ("role", "team")
    list_select_related = ("user", "team")
    search_fields = ("user__username", "team__name")
    fields = ("user", "team", "role")

    def get_queryset(self, request: HttpRequest) -> QuerySet[TeamRole]:
        """With whether the user is in the team at all."""
        rows: QuerySet[TeamRole] = super().get_queryset(request)
        return rows.prefetch_related("user__groups")

    @admin.display(boolean=True, description="in the team")
    def in_team(self, row: TeamRole) -> bool:
        """A role gives nothing to somebody who is not."""
        return row.team in row.user.groups.all()


@admin.register(AttemptCount)
class AttemptCountAdmin(ReadOnly):
    """Wrong passwords and keys that are counted now; by whom they came no row tells."""

    list_display = ("key", "tries", "ends_at")
    search_fields = ("=key",)
    date_hierarchy = "ends_at"


@admin.register(LoginLink)
class LoginLinkAdmin(ReadOnly):
    """One-time login links; their secrets are known to nobody but who got them."""

    hidden = ("secret_hash",)
    list_display = ("user", "purpose", "made_by", "expires_at", "used_at")
    list_filter = (("used_at", admin.EmptyFieldListFilter),)
    list_select_related = ("user", "made_by")
    search_fields = ("user__username",)
    date_hierarchy = "expires_at"
