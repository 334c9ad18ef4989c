"""Hostile input: pictures, requests made up from the OpenAPI document, and coverage-guided fuzzes."""
