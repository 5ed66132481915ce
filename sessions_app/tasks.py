"""The former name of ``sessions_app.worker``, for jobs that release 1.0 has queued.

A job is stored with the dotted path of its function, which the worker looks up here: so the modules of the jobs are
attributes of this one. ``worker.schedules`` moves the schedules at the next start. The release after the next one no
longer needs this module.
"""

from __future__ import annotations

from sessions_app.worker import maintenance, notifications, workflows

__all__ = ["maintenance", "notifications", "workflows"]
