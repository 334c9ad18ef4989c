"""gunicorn, configured; what of the server is ours: readiness among processes, their replacement, draining, memory.

Everything else is gunicorn's own worker of threads. Slow clients are the work of the proxy before it
(docs/deployment.md). `internals.py` lists what is used of gunicorn beyond its settings and hooks.
"""
