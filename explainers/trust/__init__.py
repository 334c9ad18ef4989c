"""Whether a map can be relied on: what it marks, and what becomes of the score without it."""
