"""Hydra configuration of `ridgeline run`, one file per experiment; workloads/experiment_settings.py has the types."""
