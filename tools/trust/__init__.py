"""Measurements of networks that are included in the package or its documentation."""
