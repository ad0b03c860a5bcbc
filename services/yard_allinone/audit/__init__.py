"""The audit of the invariants: one consistent snapshot of the database, read twice."""
