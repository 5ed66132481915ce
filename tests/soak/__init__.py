"""The soak: hundreds of sessions for a while, random deaths of everything, and what must hold all the same."""
