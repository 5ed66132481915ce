"""One place for what all views of the REST API share; the views of a topic are in the topic."""
