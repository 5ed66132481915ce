"""The project: environment, settings, URLs and the ASGI entry point."""

from executors_app import __version__ as __version__
