"""Processes, launches, git and files of one machine, for whoever runs agentctls there; it imports only ``wire``."""
