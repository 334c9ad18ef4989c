"""Resources of the operating system: processors, memory, signals to stop."""
