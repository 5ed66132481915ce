"""Output of commands on a terminal, which no text of an agent, user or file can control."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from sessions_app.redaction.visible_text import make_visible


class VisibleConsole(Console):
    """A console of rich that makes the characters visible with which a stored text could write over the output."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text or the cell of a table."""
        return super().render_str(make_visible(text), **options)
