"""What a session is at this moment, in one record for pages, API and programs, and what can be requested of it."""
