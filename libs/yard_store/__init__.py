"""Unit of work, offsets, ownership, timers, dead letters and migrations on PostgreSQL."""
