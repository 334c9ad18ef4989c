"""Perturbations: what the objective loses where parts of the picture are hidden."""
