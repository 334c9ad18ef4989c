"""The packages that `make` and the image install have fixed releases and digests, and satisfy pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "requirements").glob("*.txt"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = {"service": (), "image": ("lite", "redis", "otel"), "tests": ("test", "check"), "bench": ("bench",)}
"""Which extras each lock file of SeeWhy itself is for."""

ENTRY = re.compile(
    r"[a-z0-9-]+==[^ ;]+( ; [^\\]+)? \\\n(    --hash=sha256:[0-9a-f]{64} \\\n)*    --hash=sha256:[0-9a-f]{64}\n"
)
RECIPES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "Dockerfile")}


def releases(lock: str) -> dict[str, set[str]]:
    """Return the releases of each distribution in a lock file: one, or one for each platform or Python."""
    results: dict[str, set[str]] = {}
    for name, release in re.findall(r"^([a-z0-9-]+)==([^ ;]+)", LOCKS[lock], flags=re.MULTILINE):
        results.setdefault(name, set()).add(release)
    return results


def demands(extras: tuple[str, ...]) -> list[Requirement]:
    """Return what SeeWhy needs with these extras, those included that they name."""
    results = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    for extra in extras:
        for line in PROJECT["project"]["optional-dependencies"][extra]:
            requirement = Requirement(line)
            results += demands(tuple(requirement.extras)) if requirement.name == "seewhy" else [requirement]
    return results


def unmet(requirements: list[Requirement], lock: str) -> list[str]:
    """Return the requirements that no release of a lock file, or not each, satisfies."""
    locked = releases(lock)
    return [
        f"{requirement}: {locked.get(canonicalize_name(requirement.name))}"
        for requirement in requirements
        if not (versions := locked.get(canonicalize_name(requirement.name)))
        or not all(requirement.specifier.contains(release, prereleases=True) for release in versions)
    ]


@pytest.mark.parametrize("lock", EXTRAS)
def test_a_lock_file_has_all_that_is_asked_for_in_a_release_that_is_allowed(lock):
    assert unmet(demands(EXTRAS[lock]), lock) == [], "make lock"


def test_a_release_that_is_not_allowed_is_noticed():
    assert len(unmet([Requirement("torch<1"), Requirement("nowhere"), Requirement("Flask>=3.1")], "service")) == 2


@pytest.mark.parametrize(
    ("lock", "file"),
    [
        ("build", "requirements/build.in"),
        ("quantus", "requirements/quantus.in"),
        ("clients", "tests/clients/requirements.txt"),
    ],
)
def test_what_builds_the_oracle_of_metrics_and_the_clients_of_other_servers_are_locked(lock, file):
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    requirements = [line for line in lines if not line.startswith("#")]
    assert lock != "build" or requirements == PROJECT["build-system"]["requires"]
    assert unmet([Requirement(line) for line in requirements], lock) == [], "make lock"


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_holds_releases_with_digests_and_nothing_else(lock):
    rest = ENTRY.sub("", LOCKS[lock])
    assert [line for line in rest.splitlines() if not line.startswith("#")] == []
    assert "/" not in rest  # no path and no address, in comments neither


def test_lock_files_agree():
    tested = releases("tests")
    for lock in ("build", "bench", "service", "image", "image-cpu"):
        deviations = {name: release for name, release in releases(lock).items() if release != tested.get(name, release)}
        assert deviations == {}, f"{lock}: make lock"
    gpu_packages = {name for name in releases("image") if name not in releases("image-cpu")}
    assert {"torch", "torchvision"} <= gpu_packages
    assert all(re.fullmatch(r"torch|torchvision|triton|(cuda|nvidia)-.+", name) for name in gpu_packages)


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_is_installed_but_by_digest(name):
    recipe = re.sub(r"^(INSTALL|LOCKED) = .*$", "", RECIPES[name], flags=re.MULTILINE).replace("\\\n", " ")
    recipe = recipe.replace("$(LOCKED)", "$(INSTALL) --require-hashes --requirement").replace(
        "$(INSTALL)", "pip install"
    )
    commands = re.findall(r"pip install ([^;&|\n]*)", recipe)
    by_digest = [
        line for line in commands if re.search(r"--require-hashes --requirement requirements/[a-z-]+\.txt", line)
    ]
    exceptions = [line for line in commands if line not in by_digest]
    # SeeWhy itself, which is here, and the wheels of an index that somebody names.
    assert all(line.split()[-1] == "." or "--index-url" in line for line in exceptions), exceptions
    assert len(by_digest) >= 3


def test_pip_resolves_nothing():
    assert "\nINSTALL = $(BIN)/pip install --quiet --no-deps --no-build-isolation\n" in RECIPES["Makefile"]
    assert "\nLOCKED = $(INSTALL) --require-hashes --requirement\n" in RECIPES["Makefile"]
    assert RECIPES["Dockerfile"].count("pip install ") == RECIPES["Dockerfile"].count("pip install --no-deps ")


def test_the_base_image_is_named_by_digest():
    images = re.findall(r"^FROM (\S+)", RECIPES["Dockerfile"], flags=re.MULTILINE)
    assert images == ["$PYTHON", "$PYTHON"]
    (base,) = re.findall(r"^ARG PYTHON=(\S+)$", RECIPES["Dockerfile"], flags=re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", base)
    assert f"python:{'.'.join(base.split(':')[1].split('.')[:2])}-slim" in RECIPES["Dockerfile"]  # how to renew it


def test_the_image_is_given_the_lock_files():
    assert "!requirements" in (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
