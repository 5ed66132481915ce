"""The numbers of a deployment for Prometheus, at ``/metrics`` (interfaces 8).

They are read from the database, so every process of every host gives the same ones and none is lost by a restart.
"""
