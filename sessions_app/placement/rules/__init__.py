"""Rules of placement (pure)."""
