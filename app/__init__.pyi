from .application import create_app as create_app
