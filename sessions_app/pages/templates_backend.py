"""The template backend of all pages, fragments and e-mails: no invisible character leaves a template.

Texts of agents, files and users reach templates in many ways: variables, attributes, titles, forms, the admin. A filter
at each of them would be forgotten somewhere, so the finished text is made visible as a whole.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.template.backends.django import DjangoTemplates, Template
from django.utils.safestring import SafeString, mark_safe

from sessions_app.redaction.visible_text import make_visible


class VisibleTemplate(Template):
    """A template whose output has no control, invisible or direction-changing characters."""

    def render(self, context: dict[str, Any] | None = None, request: HttpRequest | None = None) -> SafeString:
        """Render the template; what ``|exact`` wrote keeps its characters, as references of HTML."""
        return mark_safe(make_visible(super().render(context, request)))  # noqa: S308 - only plain words are added


class VisibleTemplates(DjangoTemplates):
    """Django's template engine with ``VisibleTemplate``."""

    def from_string(self, template_code: str) -> VisibleTemplate:
        """Return a template of this text."""
        return VisibleTemplate(self.engine.from_string(template_code), self)

    def get_template(self, template_name: str) -> VisibleTemplate:
        """Return the template of this name."""
        return VisibleTemplate(super().get_template(template_name).template, self)
