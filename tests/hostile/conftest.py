from tests.app.conftest import app, cat, client, post, service

__all__ = ["app", "cat", "client", "post", "service"]
