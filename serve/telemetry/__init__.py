"""Spans, metrics and their exporters."""
