"""Keys: their creation, the contents of their file, and changes of the file, which apply at once."""

import hashlib
import hmac
import os
import tomllib

import pytest
from click.testing import CliRunner

from seewhy.app.cli import main
from seewhy.app.http import keys
from seewhy.app.http.keys import KeyFile, new_key


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys.toml"


def write_keys(file, *names):
    """Write a file with keys of these names, and return them."""
    pairs = [new_key(name) for name in names]
    file.write_text("# who may come in\n" + "".join(line + "\n" for _, line in pairs))
    return [key for key, _ in pairs]


def test_a_key_is_256_random_bits_and_the_line_is_its_digest_alone():
    key, line = new_key("alice")
    assert key.startswith("seewhy_")
    assert len(key.removeprefix("seewhy_")) == 43  # 256 bits, six to a letter
    assert tomllib.loads(line) == {"alice": f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"}
    assert key not in line
    assert len({new_key("alice")[0] for _ in range(100)}) == 100


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", "x" * 65, 'a"\nb = "c', "alice\n"])
def test_names_that_a_log_or_the_file_would_not_bear_are_refused(name):
    with pytest.raises(ValueError, match="is not a valid key name"):
        new_key(name)


def test_every_key_has_its_owner_and_nothing_else_has(file):
    alice, bob = write_keys(file, "alice", "bob")
    key_file = KeyFile(file)
    assert key_file.owner(alice) == "alice"
    assert key_file.owner(bob) == "bob"
    stored = tomllib.loads(file.read_text())["alice"]
    for wrong in ("", alice[:-1], alice + "x", alice.upper(), stored, stored.removeprefix("sha256:"), "\ud800"):
        assert key_file.owner(wrong) is None


def test_keys_are_compared_in_constant_time_with_all_of_the_file(file, monkeypatch):
    known_keys = write_keys(file, "alice", "bob", "carol")
    key_file = KeyFile(file)
    compared = []

    def compare(first, second):
        compared.append(first)
        return hmac_compare(first, second)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(keys.hmac, "compare_digest", compare)
    for key in (known_keys[0], "wrong"):
        compared.clear()
        key_file.owner(key)
        assert len(compared) == 3


def test_a_change_of_the_file_counts_from_the_next_request(file):
    (alice,) = write_keys(file, "alice")
    key_file = KeyFile(file)
    (bob,) = write_keys(file, "bob")
    assert key_file.owner(alice) is None
    assert key_file.owner(bob) == "bob"
    # As Kubernetes changes a mounted secret: another file takes the place of this one, perhaps with the same date.
    mounted = file.with_name("other.toml")
    (carol,) = write_keys(mounted, "abc")
    os.utime(mounted, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    mounted.replace(file)
    assert key_file.owner(bob) is None
    assert key_file.owner(carol) == "abc"


@pytest.mark.fault("the file of API keys is missing or invalid", "503 for all requests that need a key")
@pytest.mark.parametrize("ruin", [os.unlink, lambda file: file.write_text("alice ="), lambda file: file.write_text("")])
def test_a_file_that_is_gone_or_broken_lets_nobody_in(file, ruin):
    (alice,) = write_keys(file, "alice")
    key_file = KeyFile(file)
    ruin(file)
    for _ in range(2):
        with pytest.raises((OSError, ValueError)):
            key_file.owner(alice)
    (bob,) = write_keys(file, "bob")
    assert key_file.owner(bob) == "bob"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no key; `seewhy key NAME`"),
        (b"# nothing\n", "has no key"),
        (b"alice: sha256", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b'alice = "password"\n', "keys.toml, alice: expected"),
        (b'alice = "sha256:%s"\n' % (b"0" * 63), "keys.toml, alice: expected"),
        (b'alice = "sha256:%s\\n"\n' % (b"0" * 64), "keys.toml, alice: expected"),
        (b"alice = 7\n", "keys.toml, alice: expected"),
        (b'[alice]\nkey = "x"\n', "keys.toml, alice: expected"),
        (b'"a b" = "sha256:%s"\n' % (b"0" * 64), "is not a valid key name"),
        (b'a = "sha256:%s"\na = "sha256:%s"\n' % (b"0" * 64, b"1" * 64), "each name may appear once"),
    ],
)
def test_a_file_that_is_none_of_keys_says_what_is_wrong(file, content, message):
    file.write_bytes(content)
    with pytest.raises(ValueError, match="keys") as caught:
        KeyFile(file).read()
    assert message in str(caught.value)


def test_the_command_prints_the_line_and_shows_the_key_beside_it(file):
    result = CliRunner().invoke(main, ["key", "alice"])
    assert result.exit_code == 0
    file.write_text(result.stdout)
    (key,) = [word for word in result.stderr.split() if word.startswith("seewhy_")]
    assert KeyFile(file).owner(key) == "alice"
    assert key not in result.stdout
    result = CliRunner().invoke(main, ["key", "a b"])
    assert result.exit_code == 2
    assert "letters, digits" in result.stderr
