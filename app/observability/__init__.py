"""Metrics, logs and traces, written when a request is over."""
