"""Builders and readers that several suites share."""
