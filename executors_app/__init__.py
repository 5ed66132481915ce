"""Where agents run. ``__version__`` is the version of Kandev and of its agentctl; everything else reads it here."""

__version__ = "1.0.0"
