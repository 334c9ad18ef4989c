from tests.app.conftest import app, cat, client, port, post, served, service, url

__all__ = ["app", "cat", "client", "port", "post", "served", "service", "url"]
