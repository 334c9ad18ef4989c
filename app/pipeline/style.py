"""How to draw an answer, by the options of a request; without PyTorch."""

from seewhy.app.pipeline.option_table import DRAWING
from seewhy.app.pipeline.options import DrawingOptions
from seewhy.app.settings import Settings
from seewhy.explainers.imaging.render import Style


def drawing_style(options: DrawingOptions, settings: Settings) -> Style:
    """Return how to draw the answer.

    Raises:
        OptionError: a value is invalid.
    """
    return Style(**{name: getattr(options, name) for name in DRAWING}, max_side=settings.max_side)
