"""What the operating system grants this process: processors, memory, signals to stop."""
