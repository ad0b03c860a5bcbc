"""gpuyard's Grafana dashboards, built from the catalogue of metrics. `python -m yard_dashboards write|check`."""
