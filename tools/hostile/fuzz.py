"""One coverage-guided fuzz: ``python -m tools.hostile.fuzz TARGET SECONDS`` ends with an error if anything is found.

With a third argument, a folder, inputs that reach something new are written there.
"""

import sys
import tempfile
from importlib import import_module
from pathlib import Path

import atheris

from tools.hostile.corpus import inputs

PLUGINS = ("Avif", "Bmp", "Gif", "Jpeg", "Mpo", "Png", "Tiff", "WebP")

INSTRUMENTED = [
    "PIL",
    "seewhy.explainers.imaging.avif",
    "seewhy.explainers.imaging.decode",
    "seewhy.explainers.inspection.edits",
    "seewhy.app.http.uploads",
    "seewhy.app.answers.schemas",
    "werkzeug.formparser",
]


def main(name: str, seconds: str, keep: str | None = None) -> None:
    """Fuzz a target for this many seconds."""
    with atheris.instrument_imports(include=INSTRUMENTED):
        for plugin in PLUGINS:  # Pillow itself imports them later, without instrumentation
            import_module(f"PIL.{plugin}ImagePlugin")
        from tools.hostile.targets import MAX_LENGTH, run, seeds
    with tempfile.TemporaryDirectory() as start:
        for index, content in enumerate([*seeds(name), *inputs(name).values()]):
            (Path(start) / str(index)).write_bytes(content)
        folders = [keep or start, start]
        flags = ["-timeout=10", "-rss_limit_mb=4096", f"-max_len={MAX_LENGTH}", "-print_final_stats=1"]
        flags += [f"-max_total_time={seconds}", "-seed=1", f"-artifact_prefix={name}-"]
        atheris.Setup([sys.argv[0], *flags, *dict.fromkeys(folders)], lambda content: run(name, content))
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
