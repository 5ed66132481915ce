"""Maintenance chores: delete what provably nothing references. Each may be killed at any point and run again."""
