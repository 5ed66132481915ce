"""URLs of the review: a page, and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.review import comment_views, views
from sessions_app.review.api import comments, uncommitted
from sessions_app.review.api import views as api

urlpatterns = [
    path(SESSION + "changes/", views.show_changes, name="session-changes"),
    path(SESSION + "changes/comments/", comment_views.change_comments, name="session-comments"),
]
api_urlpatterns = [
    path(SESSION + "review/", api.BranchChangesView.as_view()),
    path(SESSION + "review/hunks/", api.BranchHunksView.as_view()),
    path(SESSION + "review/comments/", comments.CommentListView.as_view()),
    path(SESSION + "review/comments/send/", comments.SendCommentsView.as_view()),
    path(SESSION + "review/comments/<uuid:comment_id>/", comments.CommentView.as_view()),
    path(SESSION + "review/loss/", uncommitted.LossView.as_view()),
    path(SESSION + "review/undo/", uncommitted.UndoView.as_view()),
    path(SESSION + "review/viewed/", comments.ViewedView.as_view()),
]
