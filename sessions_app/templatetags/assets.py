"""The template tag ``{% page_assets "board" %}``: the style sheet and the script of a page."""

from __future__ import annotations

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

from sessions_app.pages.assets import asset_path

register = template.Library()


@register.simple_tag
def page_assets(page: str) -> SafeString:
    """Render the links to the style sheet and the script of ``page``, a name in ``frontend/static/kandev/pages``."""
    return format_html(
        '<link rel="stylesheet" href="{}">\n<script type="module" src="{}"></script>',
        static(asset_path(page, "css")),
        static(asset_path(page, "js")),
    )
