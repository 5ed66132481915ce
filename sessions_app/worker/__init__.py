"""Jobs of the worker (django-q2): slow and regular work that needs no lease. Each job may run twice.

Queued jobs and schedules store the dotted paths of these functions: keep a renamed one importable for one release, as
``sessions_app/tasks.py`` does.
"""
