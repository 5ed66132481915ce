"""The name of ``sessions_app.worker`` in stored jobs and schedules.

A job is stored with the dotted path of its function, which the worker looks up here: so the modules of the jobs are
attributes of this one. Jobs are also queued under this name, because workers of release 1.0 may run beside those of
this one. The next release may queue them as ``sessions_app.worker``, and the one after it no longer needs this module.
"""

from __future__ import annotations

from sessions_app.worker import maintenance, notifications, workflows

__all__ = ["maintenance", "notifications", "workflows"]
