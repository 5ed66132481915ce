"""Sessions on other machines, through the host daemon of agentctl there."""
