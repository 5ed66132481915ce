"""API view of the search."""

from __future__ import annotations

from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView
from sessions_app.api.serializers.common import document_responses
from sessions_app.search.api.serializers import SearchPageSerializer, SearchQuerySerializer
from sessions_app.search.services import Order, SearchFilter, search


class SearchView(ApiView):
    """Search in conversations and tasks."""

    @document_responses({200: SearchPageSerializer}, 400, 409, parameters=[SearchQuerySerializer])
    def get(self, request: UserRequest) -> Response:
        """Search the conversations and tasks of your teams, newest or best first."""
        query = self.query(SearchQuerySerializer)
        where = SearchFilter(query.get("session"), query.get("task"), query.get("state", ""), query.get("who", ""))
        order, number, size = Order(query["order"]), query["page"], query["page_size"]
        return self.show(SearchPageSerializer, search(request.user, query["q"], where, order, number=number, size=size))
