"""Admin pages of sessions and everything that belongs to them.

These use the plain Django admin, which is maintained with Django and has nothing inline, so that the same
Content-Security-Policy applies as to our own pages. django-unfold, for example, evaluates expressions in its markup
(Alpine.js) and would need ``unsafe-eval`` where staff can name executables.

States are never edited: staff *request* a change with an action, and the supervisor that holds the lease carries it
out. Records of what happened (log, receipts, prompts, sweeps) are read-only.
"""

from sessions_app.admin import operations, records, tasks

__all__ = ["operations", "records", "tasks"]
