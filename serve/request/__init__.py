"""The client's request: parsed, described to the policy, and rewritten for an engine."""
