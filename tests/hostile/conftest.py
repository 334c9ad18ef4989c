from tests.app.conftest import app, cat, client, post, service, url

__all__ = ["app", "cat", "client", "post", "service", "url"]
