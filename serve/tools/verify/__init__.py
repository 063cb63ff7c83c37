"""Checks what advisories say about engines on engines."""
