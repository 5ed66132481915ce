"""The form of the search page."""

from __future__ import annotations

from django import forms

from sessions_app.kernel.rules.states import TaskState
from sessions_app.pages.labels import TASK_STATE_LABELS
from sessions_app.search.rules.queries import LONGEST_QUERY
from sessions_app.search.services import LONGEST_AUTHOR, MOST_RESULTS, PAGE_SIZE, Order

ORDERS = ((Order.NEWEST.value, "Newest first"), (Order.BEST.value, "Best match first"))
STATES = tuple((state.value, TASK_STATE_LABELS[state].text) for state in TaskState)


class SearchForm(forms.Form):
    """What the query string of the page says. Nothing is required."""

    q = forms.CharField(required=False, max_length=LONGEST_QUERY)
    session = forms.UUIDField(required=False)
    state = forms.ChoiceField(required=False, choices=STATES)
    who = forms.CharField(required=False, max_length=LONGEST_AUTHOR)
    order = forms.ChoiceField(required=False, choices=ORDERS)
    page = forms.IntegerField(required=False, min_value=1, max_value=MOST_RESULTS // PAGE_SIZE)
