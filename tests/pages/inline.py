"""Find inline code in a page that its content security policy would block."""

from __future__ import annotations

import re
from typing import Final

from django.conf import settings

_INLINE: Final = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", re.IGNORECASE)
KNOWN: Final = f"<script>{settings.KANDEV_INLINE_SCRIPT.read_text()}</script>"
"""The one script that is inline in every page."""


def foreign_inline(text: str) -> list[str]:
    """Return inline scripts, styles and handlers, except for the one script that the policy allows."""
    return _INLINE.findall(text.replace(KNOWN, ""))
