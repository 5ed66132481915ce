"""The project: environment, settings, URLs and the ASGI entry point."""
