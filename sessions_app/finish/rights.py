"""Who may merge and push the branch of a session."""

from __future__ import annotations

from django.contrib.auth.models import Group, User

from sessions_app.accounts.authorization import may_merge, may_push
from sessions_app.finish.rules.finish import FinishKind

_RIGHTS = {FinishKind.MERGE: may_merge, FinishKind.PUSH: may_push}


def may_finish(user: User | None, team: Group, kind: FinishKind) -> bool:
    """Return whether ``user`` may request an intent of this kind, and have it carried out."""
    return user is not None and user.is_active and _RIGHTS[kind](user, team)
