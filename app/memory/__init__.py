"""The memory budget of all requests of a process."""
