"""What an agent can do, needs and was told is stored, and a new agent gets it again."""
