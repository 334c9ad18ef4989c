"""gunicorn's configuration, and our additions: readiness among processes, replacement, draining and memory.

Everything else is gunicorn's own threaded worker. The proxy in front handles slow clients (docs/deployment.md).
`tests/app/test_internals.py` lists what we use of gunicorn beyond its settings and hooks.
"""
