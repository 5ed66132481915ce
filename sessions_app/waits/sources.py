"""The declaration of a kind of wait, from which pages, API, mail, webhooks and metrics follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db.models import DateTimeField, Value
from django.db.models.expressions import Combinable

from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.waits.rules.open_waits import WaitDetails


@dataclass(frozen=True, slots=True)
class WaitSource:
    """One kind of wait: which rows are open waits, and what each of them says.

    Its table belongs to a team (``TeamModel``) and has a column ``session``.
    """

    kind: str
    """Its name in the API and in metrics."""
    label: Label
    rows: Callable[[], Any]
    """Return the open waits of all teams as a queryset, without large columns."""
    describe: Callable[[Any], WaitDetails]
    since: str
    """The column with the time at which it began."""
    deadline: Combinable | None = None
    """When it ends by itself, as an expression; None: never."""
    item_prefix: str = ""
    """The key of its inbox item without the row's id; empty: it has no item."""

    @property
    def deadline_column(self) -> Combinable:
        """When it ends by itself, as an expression that may be null."""
        if self.deadline is None:
            return Value(None, DateTimeField())
        return self.deadline

    def item_key(self, row_id: object) -> str:
        """Return the key of the inbox item about a row; empty: there is none."""
        if not self.item_prefix:
            return ""
        return f"{self.item_prefix}{row_id}"
