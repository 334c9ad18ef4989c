"""The `seewhy` command. Commands that need PyTorch are imported when called for, or for --help: it takes seconds."""

from importlib import import_module
from typing import Any

import click
from pydantic import ValidationError

from app.cli_io import table
from app.settings import Settings

COMMANDS = {
    "explain": "app.cli_pictures",
    "predict": "app.cli_pictures",
    "trace": "app.cli_hooks",
    "capture": "app.cli_hooks",
    "intervene": "app.cli_hooks",
    "models": "app.cli_catalogue",
    "layers": "app.cli_catalogue",
    "methods": "app.cli_catalogue",
}
"""Commands by name, and the modules that they are in."""


class _Group(click.Group):
    """Imports commands when they are called for, and turns what a user can mend into one line and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ValidationError as error:
            faults = "; ".join(f"{one['loc'][0]}: {one['msg'].removeprefix('Value error, ')}" for one in error.errors())
            raise click.ClickException(faults) from error
        except (click.ClickException, click.Abort, click.exceptions.Exit, OSError):
            raise
        except Exception as error:
            from app.errors import EXPECTED

            if isinstance(error, EXPECTED):
                raise click.ClickException(str(error)) from error
            raise


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="seewhy")
def main() -> None:
    """SeeWhy: see where a pretrained CNN looked."""


@main.command()
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on.")
@click.option("--workers", type=int, help="Processes.")
@click.option("--device", help="auto, cpu, cuda or cuda:N.")
def serve(**given: Any) -> None:
    """Serve the HTTP API and the web page."""
    from app.server import serve as run

    run(Settings(**{name: value for name, value in given.items() if value is not None}))


@main.command()
def settings() -> None:
    """List the settings: environment variable, present value, default and help."""
    table(("VARIABLE", "VALUE", "DEFAULT", "HELP"), list(Settings().rows()))


if __name__ == "__main__":
    main()
