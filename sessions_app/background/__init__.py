"""What turns have left running is listed as of its last report, and never ended without being named.

agentctl tells such processes from the agent's own, and reports them with their CPU time as long as there are any. They
keep the session awake, or end when it falls asleep, as its policy says. Whatever ends them (a stop, sleep, the death of
the agent or of its agentctl) is recorded with their commands, and the agent is told with its next prompt.
"""
