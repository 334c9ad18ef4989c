"""Backward passes by other rules than the derivative."""
