"""Formats of the only language."""
