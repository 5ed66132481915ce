"""Accounts: logins, passwords, API tokens, teams, profiles and the design system."""
