"""Tests of maps: what a map marks, and how the score changes without it."""
