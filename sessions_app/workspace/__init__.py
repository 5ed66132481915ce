"""Uncommitted work survives the loss of its machine, and what could not be kept is named."""
