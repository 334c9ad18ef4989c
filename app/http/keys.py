"""API keys: creation, the file of their digests, and the owner of a key.

A key is 256 random bits, so its digest needs neither salt nor a slow hash. Those protect passwords, which people choose
from few; nobody guesses one of 2^256 numbers. A slow hash would add its time to each request, and let anybody who sends
wrong keys keep the processors busy.
"""

import hashlib
import hmac
import os
import re
import secrets
import tomllib
from pathlib import Path

_PREFIX = "seewhy_"
"""Prefix by which secret scanners recognise a key."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def new_key(name: str) -> tuple[str, str]:
    """Create a key.

    Args:
        name: name of the owner: letters, digits, ``_`` and ``-``.

    Returns:
        The key, and its line for the key file, from which the key cannot be recovered.

    Raises:
        ValueError: the name has other characters.
    """
    _check(name)
    key = _PREFIX + secrets.token_urlsafe(32)
    return key, f'{name} = "sha256:{_digest(key).hex()}"'


class KeyFile:
    """The keys in a TOML file, each as ``name = "sha256:..."``; changes apply from the next request on.

    Args:
        path: path of the file, which is not read yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: tuple[tuple[int, ...], dict[str, bytes]] = ((), {})

    def read(self) -> None:
        """Read the file.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not TOML, has an invalid line, or has no key.
        """
        stamp = self._stamp()  # first: a file that changes while it is read is read again
        try:
            table = tomllib.loads(self._path.read_text(encoding="utf-8"))
        except ValueError as error:
            hint = "; each name may appear once" if "overwrite" in str(error) else ""
            raise ValueError(f"{self._path.name} is not TOML: {error}{hint}") from error
        if not table:
            raise ValueError(f"{self._path.name} has no key; `seewhy key NAME` creates one")
        try:
            self._table = stamp, {_check(name): _parse_digest(name, value) for name, value in table.items()}
        except ValueError as error:
            raise ValueError(f"{self._path.name}, {error}") from error

    def owner(self, key: str) -> str | None:
        """Return the name of a key, or None if it is not in the file.

        The time it takes reveals nothing about the keys in the file.

        Raises:
            OSError, ValueError: as for `read`: a missing or broken file lets nobody in.
        """
        if self._stamp() != self._table[0]:
            self.read()
        key_digest, owner = _digest(key), None
        for name, digest in self._table[1].items():
            if hmac.compare_digest(digest, key_digest):
                owner = name
        return owner

    def _stamp(self) -> tuple[int, ...]:
        status = os.stat(self._path)
        return status.st_mtime_ns, status.st_size, status.st_ino


def _parse_digest(name: str, value: object) -> bytes:
    match = _DIGEST.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'{name}: expected "sha256:" and 64 hexadecimal digits; `seewhy key NAME` prints the line')
    return bytes.fromhex(match[1])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def _check(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not a valid key name: use up to 64 letters, digits, _ and -")
    return name
