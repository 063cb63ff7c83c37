"""Recall: how many of the public hazards the shipped advisories keep drafts away from, and what they ban in vain."""
