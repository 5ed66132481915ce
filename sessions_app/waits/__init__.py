"""A wait is ended by its key, by its deadline or by a user, once; its result is never lost."""
