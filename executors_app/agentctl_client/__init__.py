"""The control plane's client of agentctl, and the connections that it needs."""
