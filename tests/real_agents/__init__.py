"""Published coding agents, run for real against a loopback model."""
