"""Similarity of two pictures to a network, and the patches that contribute to it."""
