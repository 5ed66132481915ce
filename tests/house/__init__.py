"""Tests of the project's own frame: environment, settings, commands."""
