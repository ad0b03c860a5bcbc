"""Logs now; traces, metrics and their catalogue with the event pipeline."""
