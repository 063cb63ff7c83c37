"""What only a GPU can tell: step times by batch and draft length, and what an opt-out costs the others."""
