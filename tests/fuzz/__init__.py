"""Random and unusual input at every boundary: from agents, browsers and files."""
