"""Gradients of the objective with respect to the picture, at one point or many."""
