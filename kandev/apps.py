"""Configuration of Django's admin with our own site."""

from __future__ import annotations

from django.contrib.admin.apps import AdminConfig


class KandevAdminConfig(AdminConfig):
    """``django.contrib.admin`` with `kandev.admin_site.KandevAdminSite` as its site."""

    default_site = "kandev.admin_site.KandevAdminSite"
