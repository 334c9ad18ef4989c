"""Metrics of maps: how faithful, stable, simple and well placed they are; each a frozen dataclass of its parameters.

Importing it fills the catalogue.
"""

from . import curves, grids, masking, perturbing, randomisation, road, shape, stability, truth  # noqa: F401
