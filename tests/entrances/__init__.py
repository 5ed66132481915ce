"""What agents, members and programs send costs at most in proportion to its size, wherever it enters.

Every address, socket action, MCP tool and kind of journal line is tested because it exists: the tests enumerate them.
"""
