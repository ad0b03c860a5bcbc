"""Buses: one protocol, several implementations, one contract suite."""
