"""Data and deployments that show how Kandev works."""
