"""Whether the service is stopping: one byte shared by all processes forked from this one."""

import ctypes
import mmap

stopping = ctypes.c_bool.from_buffer(mmap.mmap(-1, 1))
"""True once the whole service stops, not when a single process is replaced."""
