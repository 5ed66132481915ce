"""Upgrades of what earlier releases left: databases, data directories and running agentctls."""
