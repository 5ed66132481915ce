"""A restart is a non-event: what ran runs again with its context, and the receipt says how far that is proven."""
