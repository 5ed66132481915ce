"""Rebuilding sessions from the portable record: ``manage.py import_sessions``."""
