"""Workloads: recorded or generated requests, replayed against an engine."""
