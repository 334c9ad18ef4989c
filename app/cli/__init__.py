"""The `seewhy` command.

Modules that define commands import nothing heavy, so that help and completion are quick. A command imports its code
when it runs: PyTorch takes seconds, and must come after `share_processors`.
"""

import os
from typing import Any

import click
from click.shell_completion import get_completion_class

from seewhy.app.cli.batch import batch
from seewhy.app.cli.catalogue import layers, methods, models
from seewhy.app.cli.hooks import capture, intervene, trace
from seewhy.app.cli.interrupt import INTERRUPTED, graceful
from seewhy.app.cli.options import device_option, examples, option_hint
from seewhy.app.cli.output import table, verbosity_options
from seewhy.app.cli.pictures import calibrate, detect, evaluate, explain, predict, segment, similar
from seewhy.app.errors import BAD_INPUT, EXPECTED, InvalidOptionsError, exit_status, with_notes
from seewhy.app.http.keys import new_key
from seewhy.app.system.processors import share_processors
from seewhy.app.system.warnings import ignore_large_pictures

_INSTEAD = {"compare": "seewhy explain PICTURE --method gradcam,votes-detail"}
"""What to run instead of commands that do not exist."""


def _option(field: str) -> str:
    """Return the option of a field, or the path of a part of it, such as ``edits[0].op``."""
    return f"--{field.replace('_', '-')}" if field.isidentifier() else field


class _Group(click.Group):
    """Lists commands in order of registration, and turns errors that a user can correct into a message and a status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _INSTEAD and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {cmd_name!r}. Did you mean {_INSTEAD[cmd_name]!r}?", ctx)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with graceful():  # `serve` puts its own handlers in place
                return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.ctx and (hint := option_hint(error.option_name, error.ctx)):
                raise click.UsageError(f"{error.message} {hint}", error.ctx) from error
            raise
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except InvalidOptionsError as error:
            raise click.UsageError(" ".join(f"{_option(field)}: {text}" for field, text in error.faults)) from error
        except EXPECTED as error:
            kind = click.UsageError if exit_status(error) == BAD_INPUT else click.ClickException
            raise kind(with_notes(error)) from error


@click.group(
    cls=_Group,
    epilog=examples("explain cat.jpg", "predict cat.jpg", "serve --port 9000", "explain --help"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="seewhy")
@verbosity_options
@click.pass_context
def main(ctx: click.Context) -> None:
    """SeeWhy: explain the predictions of vision models."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    ignore_large_pictures()
    if ctx.invoked_subcommand != "serve":  # which divides them among processes
        share_processors(1)


@main.command(epilog=examples("serve", "serve --host 0.0.0.0 --port 9000 --workers 2"))
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on.")
@click.option("--workers", type=int, help="Number of processes; each loads its own models.")
@device_option
def serve(**options: Any) -> None:
    """Serve the HTTP API and the web page."""
    from seewhy.app.cli.environment import read_settings
    from seewhy.app.server.start import serve as run

    run(read_settings(**{name: value for name, value in options.items() if value is not None}))


_PICTURES = (explain, predict, detect, segment, similar, evaluate, calibrate, batch)

for command in (*_PICTURES, trace, capture, intervene, models, layers, methods):
    main.add_command(command)


@main.command(epilog=examples("settings"))
def settings() -> None:
    """List the settings with their values, defaults and help."""
    from seewhy.app.cli.environment import read_settings

    table(("VARIABLE", "VALUE", "DEFAULT", "HELP"), list(read_settings().rows()))


@main.command(epilog=examples("key alice >> keys.toml"))
@click.argument("name")
def key(name: str) -> None:
    """Create an API key for NAME.

    Prints the line for the file that SEEWHY_API_KEYS names. The key itself is shown once, on standard error, and is
    not stored.
    """
    try:
        secret, line = new_key(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from error
    click.echo(f"The key of {name}, shown only once: {secret}", err=True)
    click.echo("Add this line to the file that SEEWHY_API_KEYS names, where each name may appear only once:", err=True)
    click.echo(line)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    It completes commands, options, models, methods and layers.

    \b
    bash, in ~/.bashrc:                 eval "$(seewhy completion bash)"
    zsh, in ~/.zshrc, after compinit:   eval "$(seewhy completion zsh)"
    fish:  seewhy completion fish > ~/.config/fish/completions/seewhy.fish
    """
    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"click {click.__version__} cannot complete in {shell}.")
    click.echo(script(ctx.find_root().command, {}, "seewhy", "_SEEWHY_COMPLETE").source())
