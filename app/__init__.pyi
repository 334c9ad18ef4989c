from .application import create_app as create_app
from .client.client import Client as Client
from .errors import ServiceError as ServiceError
