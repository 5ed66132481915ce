"""What an agent says is in the log once, in order, before it is acknowledged; a flood delays only its session."""
