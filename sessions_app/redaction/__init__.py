"""Secrets are found in texts, and texts are made safe to show, in time that grows with their length alone (pure)."""
