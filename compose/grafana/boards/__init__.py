"""gpuyard's dashboards and alerts, from the catalogue of its metrics."""
