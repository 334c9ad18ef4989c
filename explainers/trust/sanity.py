"""Sanity of a method on a network: whether its maps change with the class and with the weights."""

from dataclasses import dataclass

SAME = 0.8
"""Rank correlation from which on two maps are the same."""


@dataclass(frozen=True)
class Sanity:
    """Mean magnitude of Spearman's correlation of the method's map with another, over some pictures.

    Attributes:
        same_with_random_head: with that of the network whose classes are exchanged at random.
        same_with_random_model: with that of a network of the same structure and random weights.
        same_for_an_unlikely_class: with that for a class the network finds unlikely.
        pictures: number of pictures.
    """

    same_with_random_head: float
    same_with_random_model: float
    same_for_an_unlikely_class: float
    pictures: int

    @property
    def is_same_for_every_class(self) -> bool:
        """Whether the map hardly depends on what is asked, nor on the weights of the head.

        Both, because a magnitude forgets the sign: some maps of a random head are those of the network, reversed.
        """
        return min(self.same_with_random_head, self.same_for_an_unlikely_class) > SAME

    @property
    def ignores_the_model(self) -> bool:
        """Whether the map hardly depends on the weights."""
        return self.same_with_random_model > SAME
