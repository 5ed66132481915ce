"""A start is carried out once, within its limits, and ends as running, failed or given up, with the reason."""
