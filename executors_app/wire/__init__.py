"""What control plane, agentctl and its host daemon speak with each other; it imports nothing of ours."""
