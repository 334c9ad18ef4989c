"""Commands that take the options of methods and metrics by their names, as requests do."""

import re
from collections.abc import Iterable
from typing import Any

import click

from seewhy.app.cli.names import metric_option_names, option_names


class _ExtraOption(click.Option):
    """An option of a method or metric. Help lists them together, because each would need a sentence for each method."""

    def __init__(self, public: str) -> None:
        super().__init__([f"--{public.replace('_', '-')}", re.sub(r"\W", "_", public)], multiple=True, metavar="VALUE")
        self.public = public

    def get_help_record(self, ctx: click.Context) -> None:
        """Return nothing; see `MethodCommand.format_options`."""


class MethodCommand(click.Command):
    """A command with the options of all built-in methods; its parameter `extra` has them too, as NAME=VALUE."""

    title = "Options of the method, with a value (`seewhy methods NAME` describes them)"

    def extra_names(self) -> Iterable[str]:
        """Return the names of the options, as requests have them."""
        return (name for names in option_names().values() for name in names if name != "layers")

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters, and the options of methods."""
        own = super().get_params(ctx)
        flags = {name for parameter in own for name in parameter.opts}
        options = map(_ExtraOption, sorted(set(self.extra_names())))
        return [*own, *(option for option in options if not flags.intersection(option.opts))]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of methods as a list."""
        super().format_options(ctx, formatter)
        names = [option.opts[0] for option in self.get_params(ctx) if isinstance(option, _ExtraOption)]
        with formatter.section(self.title):
            formatter.write_text(", ".join(names))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments; options of methods are added to `extra`."""
        options = [option for option in self.get_params(ctx) if isinstance(option, _ExtraOption)]
        rest = super().parse_args(ctx, args)
        for option in options:
            values: tuple[Any, ...] = ctx.params.pop(option.name, None) or ()
            ctx.params["extra"] = (ctx.params["extra"] or ()) + tuple(f"{option.public}={value}" for value in values)
        return rest


class EvaluateCommand(MethodCommand):
    """A command that also takes the options of metrics, with the metric's name before a dot."""

    title = "Options of methods and metrics, with a value (`seewhy methods NAME` describes those of methods)"

    def extra_names(self) -> Iterable[str]:
        """Return the names of the options of methods and metrics."""
        yield from super().extra_names()
        yield from (f"{metric}.{name}" for metric, names in metric_option_names().items() for name in names)
