"""Accounts: logins, passwords, keys of the API, teams and how the pages look."""
