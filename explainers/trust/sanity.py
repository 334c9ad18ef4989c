"""Sanity of a method on a network: whether its maps depend on the class and on the weights."""

from dataclasses import dataclass

SAME = 0.8
"""Two maps with a higher rank correlation count as the same."""


@dataclass(frozen=True)
class Sanity:
    """Mean magnitude of Spearman's correlation of the method's map with other maps, over some pictures.

    Attributes:
        same_with_random_head: with the map of the network with shuffled classes.
        same_with_random_model: with the map of a network with the same structure and random weights.
        same_for_an_unlikely_class: with the map for a class that is unlikely according to the network.
        pictures: number of pictures.
    """

    same_with_random_head: float
    same_with_random_model: float
    same_for_an_unlikely_class: float
    pictures: int

    @property
    def is_same_for_every_class(self) -> bool:
        """Whether the map hardly depends on the class or on the weights of the head.

        Both must hold, because the magnitude ignores the sign: a random head can reverse a map.
        """
        return min(self.same_with_random_head, self.same_for_an_unlikely_class) > SAME

    @property
    def ignores_the_model(self) -> bool:
        """Whether the map hardly depends on the weights."""
        return self.same_with_random_model > SAME
