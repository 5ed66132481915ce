"""Rules of hosts (pure)."""
