"""The command that prints completion scripts of shells."""

import click
from click.shell_completion import get_completion_class


@click.command()
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
