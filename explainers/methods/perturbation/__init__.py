"""Perturbations: the loss of the objective when parts of the picture are hidden."""
