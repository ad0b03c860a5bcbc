"""What every process shares: the Service protocol, settings, clock, ids, cycles, the host of services."""
