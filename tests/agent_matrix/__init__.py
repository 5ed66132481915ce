"""``make agent-matrix``: what the published agents that are installed here do, measured against a loopback model."""
