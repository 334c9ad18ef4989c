"""gunicorn, configured; what of the server is ours: readiness among processes, their replacement, draining, memory.

Everything else is gunicorn's own worker of threads. Slow clients are the work of the proxy before it
(docs/deployment.md). `internals.py` lists what is used of gunicorn beyond its settings and hooks.
"""

from seewhy.app.settings import Settings


def serve(settings: Settings) -> None:
    """Serve until told to stop; `seewhy.app.server.start.serve` says how that may fail."""
    from seewhy.app.server.start import serve as start

    start(settings)
