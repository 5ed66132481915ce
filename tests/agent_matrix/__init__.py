"""``make agent-matrix``: measurements of the published agents installed here, with a loopback model."""
