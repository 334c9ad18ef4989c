# The front door, to type checkers: the public names of two floors, and some of the third.
from .app import Client as Client
from .app import ServiceError as ServiceError
from .app.batch.reader import open_batch as open_batch
from .app.batch.run import batch as batch
from .app.batch.run import forecast as forecast
from .explainers import *  # noqa: F403
from .models import *  # noqa: F403
