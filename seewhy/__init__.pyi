# The front door, to type checkers: the public names of both floors.
from .explainers import *  # noqa: F403
from .models import *  # noqa: F403
