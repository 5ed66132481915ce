"""The admin's pages for sessions and all that belongs to them.

Plain Django admin, on purpose. It is kept by Django itself, release by release, and needs no other
package. Its pages have nothing inline, so they live under the same Content-Security-Policy as ours;
django-unfold, the best-kept alternative, evaluates expressions in its markup (Alpine.js) and would
ask for ``unsafe-eval`` in the one place where staff can name executables.

States are shown and never edited: to move a session somebody *asks* (the actions of its list), and
the lease holder carries it out. What happened (log, receipts, ledger, sweeps) is read-only.
"""

from sessions_app.admin import attention, operations, records, tasks

__all__ = ["attention", "operations", "records", "tasks"]
