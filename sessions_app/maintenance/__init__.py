"""What is proven to be needed by nothing is deleted, within limits, and nothing else.

Maintenance chores: delete what provably nothing references. Each may be killed at any point and run again.
"""
