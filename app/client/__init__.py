"""The client of a service: the library's interface over HTTP, without PyTorch."""
