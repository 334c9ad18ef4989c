# The front door, to type checkers: the public names of two floors, and the client in the third.
from .app import Client as Client
from .app import ServiceError as ServiceError
from .explainers import *  # noqa: F403
from .models import *  # noqa: F403
