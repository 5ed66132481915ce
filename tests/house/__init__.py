"""Tests of settings, environment, data directory, processes and upgrades."""
