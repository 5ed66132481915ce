"""An answer goes to the action that was shown, once; nobody answers what has changed meanwhile."""
