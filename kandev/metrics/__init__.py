"""Metrics of a deployment for Prometheus, at ``/metrics``.

They are read from the database, so every process on every host returns the same values, and a restart loses none.
"""
