"""What the pages of all topics share: labels, look-ups, templates, health and help."""
