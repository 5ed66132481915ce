"""What tests and benchmarks share: stand-ins for agents and agentctl."""
