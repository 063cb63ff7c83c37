"""Attacks on a running gateway replica, and what a bystander has of it."""
