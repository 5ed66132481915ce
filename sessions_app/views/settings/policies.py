"""What happens to a team's sessions after a restart, where a session does not say."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache

from sessions_app.services import policies
from sessions_app.services.rights import may_manage
from sessions_app.views.settings.sections import show
from sessions_app.views.settings.teams import find_team
from sessions_app.views.wording import POLICIES

CONTINUES: Final = {"": None, "on": True, "off": False}


class PolicyForm(forms.Form):
    """Both choices."""

    policy = forms.ChoiceField(
        choices=[("", "As the deployment says"), *((key, word.text) for key, word in POLICIES.items())],
        required=False,
        label="After a restart",
    )
    continues = forms.ChoiceField(
        choices=[("", "As the deployment says"), ("on", "Continue it"), ("off", "Leave it to a person")],
        required=False,
        label="Interrupted work",
    )

    def values(self) -> dict[str, Any]:
        """As the service takes them."""
        told = self.cleaned_data
        return {"policy": told["policy"], "continue_prompts": CONTINUES[told["continues"]]}


@never_cache
def team_policy(request: HttpRequest, team_id: int) -> HttpResponse:
    """Show a team's policy; a POST by who looks after the team changes it."""
    team = find_team(request, team_id)
    said = policies.team_policy(team)
    initial = {"policy": said["policy"], "continues": {True: "on", False: "off", None: ""}[said["continue_prompts"]]}
    form = PolicyForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        policies.set_team_policy(team, form.values(), request.user)
        messages.success(request, "Saved. It holds from the next look at the team’s sessions.")
        return redirect("settings-team-policy", team.pk)
    context = {
        "team": team,
        "form": form,
        "manages": may_manage(request.user, team),
        "held": said["effective"],
        "held_word": POLICIES[said["effective"]["policy"]],
        "words": POLICIES.values(),
    }
    return show(request, "settings/team_policy.html", "settings-teams", context, 422 if form.errors else 200)
