"""URLs of the review: a page, and the API."""

from __future__ import annotations

from django.urls import path

from sessions_app.kernel.addresses import SESSION
from sessions_app.review import comment_views, uncommitted_views, views
from sessions_app.review.api import comments, commit, uncommitted
from sessions_app.review.api import views as api

urlpatterns = [
    path(SESSION + "changes/", views.show_changes, name="session-changes"),
    path(SESSION + "changes/comments/", comment_views.change_comments, name="session-comments"),
    path(SESSION + "changes/commit/", uncommitted_views.commit_changes, name="session-commit"),
    path(SESSION + "changes/undo/", uncommitted_views.undo_changes, name="session-undo"),
]
api_urlpatterns = [
    path(SESSION + "review/", api.BranchChangesView.as_view()),
    path(SESSION + "review/hunks/", api.BranchHunksView.as_view()),
    path(SESSION + "review/comments/", comments.CommentListView.as_view()),
    path(SESSION + "review/comments/send/", comments.SendCommentsView.as_view()),
    path(SESSION + "review/comments/<uuid:comment_id>/", comments.CommentView.as_view()),
    path(SESSION + "review/commit/", commit.SelectedCommitView.as_view()),
    path(SESSION + "review/loss/", uncommitted.LossView.as_view()),
    path(SESSION + "review/undo/", uncommitted.UndoView.as_view()),
    path(SESSION + "review/viewed/", comments.ViewedView.as_view()),
]
