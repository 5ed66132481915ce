"""Complete files to copy: an agent type and a runtime."""
