"""The settings of a command."""

from typing import Any

import click
from pydantic import ValidationError

from seewhy.app.settings import Settings, setting_faults


class SettingsError(click.ClickException):
    """Invalid settings: they end the command like invalid options, but without the usage hint."""

    exit_code = click.UsageError.exit_code


def read_settings(**options: Any) -> Settings:
    """Return the settings of the environment, overridden by options of a command.

    Raises:
        SettingsError: a value is invalid; the message names its variable or option.
    """
    try:
        return Settings(**options)
    except ValidationError as error:
        raise SettingsError(setting_faults(error, options)) from error
