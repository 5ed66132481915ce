"""The settings: oneself, one's tokens, one's teams; and people, for staff."""
