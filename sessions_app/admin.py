"""Admin pages of sessions and everything that belongs to them.

These use the plain Django admin, which is maintained with Django and has nothing inline, so that the same
Content-Security-Policy applies as to our own pages. django-unfold, for example, evaluates expressions in its markup
(Alpine.js) and would need ``unsafe-eval`` where staff can name executables.

States are never edited: staff *request* a change with an action, and the supervisor that holds the lease carries it
out. Records of what happened (log, receipts, prompts, sweeps) are read-only.
"""

from sessions_app.agents import admin as agents_admin
from sessions_app.attention import admin as attention_admin
from sessions_app.background import admin as background_admin
from sessions_app.board import admin as board_admin
from sessions_app.catalogue import admin as catalogue_admin
from sessions_app.finish import admin as finish_admin
from sessions_app.hosts import admin as hosts_admin
from sessions_app.kernel import admin as kernel_admin
from sessions_app.maintenance import admin as maintenance_admin
from sessions_app.metrics import admin as metrics_admin
from sessions_app.navigation import admin as navigation_admin
from sessions_app.permissions import admin as permissions_admin
from sessions_app.placement import admin as placement_admin
from sessions_app.planning import admin as planning_admin
from sessions_app.prompts import admin as prompts_admin
from sessions_app.recovery import admin as recovery_admin
from sessions_app.remotes import admin as remotes_admin
from sessions_app.rendering import admin as rendering_admin
from sessions_app.review import admin as review_admin
from sessions_app.search import admin as search_admin
from sessions_app.stream import admin as stream_admin
from sessions_app.supervisor import admin as supervisor_admin
from sessions_app.suspensions import admin as suspensions_admin
from sessions_app.turns import admin as turns_admin
from sessions_app.usage import admin as usage_admin
from sessions_app.waits import admin as waits_admin

__all__ = [
    "agents_admin",
    "attention_admin",
    "background_admin",
    "board_admin",
    "catalogue_admin",
    "finish_admin",
    "hosts_admin",
    "kernel_admin",
    "maintenance_admin",
    "metrics_admin",
    "navigation_admin",
    "permissions_admin",
    "placement_admin",
    "planning_admin",
    "prompts_admin",
    "recovery_admin",
    "remotes_admin",
    "rendering_admin",
    "review_admin",
    "search_admin",
    "stream_admin",
    "supervisor_admin",
    "suspensions_admin",
    "turns_admin",
    "usage_admin",
    "waits_admin",
]
