"""What agents report to have used is summed from one ledger, and unknown stays unknown.

When a turn ends, what it alone has used is written down once: tokens, and the cost if the agent reports one. Nothing is
computed from a price list, and different currencies are never added. The ledger outlives sessions, so that the totals
of a day never shrink.
"""
