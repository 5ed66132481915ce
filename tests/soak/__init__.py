"""The soak test: hundreds of sessions, processes killed at random, and invariants checked afterwards."""
