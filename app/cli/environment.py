"""The settings of a command."""

import os
from typing import Any

import click
from pydantic import ValidationError

from seewhy.app.cli.output import is_quiet
from seewhy.app.settings import Settings, misspelt, setting_faults

_WARNED = "seewhy.warned"


class SettingsError(click.ClickException):
    """Invalid settings: they end the command like invalid options, but without the usage hint."""

    exit_code = click.UsageError.exit_code


def read_settings(**options: Any) -> Settings:
    """Return the settings of the environment, overridden by options of a command.

    The first call of a command warns about variables that look misspelt, unless it is quiet.

    Raises:
        SettingsError: a value is invalid; the message names its variable or option.
    """
    meta = click.get_current_context().meta
    if not (is_quiet() or meta.get(_WARNED)):
        meta[_WARNED] = True
        for warning in misspelt(os.environ):
            click.echo(f"Warning: {warning}", err=True)
    try:
        return Settings(**options)
    except ValidationError as error:
        raise SettingsError(setting_faults(error, options)) from error
