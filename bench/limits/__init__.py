"""How well limits hold, and what they cost."""
