"""A page can be rebuilt from the log alone and says when what happened, and who caused it."""
