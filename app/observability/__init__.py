"""Metrics, logs and traces, made when a request is over."""
