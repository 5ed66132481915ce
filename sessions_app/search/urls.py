"""URLs of the search: the page and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.search import views
from sessions_app.search.api.views import SearchView

urlpatterns = [
    path("search/", views.show_search, name="search"),
]

api_urlpatterns = [
    path("search/", SearchView.as_view()),
]
