"""One budget of memory for all requests of a process."""
