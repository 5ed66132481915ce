"""Django's admin as an application, with our own site."""

from __future__ import annotations

from django.contrib.admin.apps import AdminConfig


class KandevAdminConfig(AdminConfig):
    """``django.contrib.admin`` whose site is ``kandev.admin_site``."""

    default_site = "kandev.admin_site.KandevAdminSite"
