"""Plain output of commands, which no text of an agent, user or file can use to control the terminal."""

from __future__ import annotations

from typing import Any, TextIO

from django.core.management.base import BaseCommand

from executors_app import __version__
from sessions_app.redaction.visible_text import make_visible


class VisibleStream:
    """Writes to a stream with every invisible character made visible."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; return the number of characters given."""
        self._stream.write(make_visible(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()


class VisibleCommand(BaseCommand):
    """Base class of the commands: stored texts reach ``stdout`` and ``stderr`` without their control characters."""

    def get_version(self) -> str:
        """Return what ``--version`` prints: the version of Kandev."""
        return __version__

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command with its output made visible, also the message of a CommandError."""
        for name in ("stdout", "stderr"):
            # OutputWrapper keeps the stream as ``_out``, and offers no other way to it.
            stream = options.get(name) or getattr(self, name)._out  # noqa: SLF001
            options[name] = VisibleStream(stream)
        return super().execute(*args, **options)
