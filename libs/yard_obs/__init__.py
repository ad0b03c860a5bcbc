"""How gpuyard is observed: logs, traces, metrics, and the catalogue of their names."""
