"""Shared by tests and benchmarks: fake agents and fake agentctls."""
