"""What went is refused in one line wherever a user may still write it.

``python -m tests.test_removed`` writes the table of the CHANGELOG.
"""

import importlib
import re
from pathlib import Path

import pytest

from idpgan.commands import main
from idpgan.config import load_table
from idpgan.errors import ConfigError
from idpgan.removed import REMOVED, SINCE, gone
from idpgan.training.config import build_config

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
BLOCK = re.compile(r"(<!-- removed -->\n).*?(<!-- /removed -->)", re.DOTALL)

NAMES = [name for name in REMOVED if re.fullmatch(r"idpgan(\.\w+)+", name)]
KEYS = [name for name in REMOVED if re.fullmatch(r"[a-z]+\.[a-z_]+", name) and name not in NAMES]
METHODS = [name for name in REMOVED if name.startswith("method.name = ")]
CONFIGS = [name for name in REMOVED if name.startswith("config ")]
COMMANDS = [name for name in REMOVED if name.startswith("idpgan ")]


def table():
    rows = ["| what you wrote | instead |", "| --- | --- |"]
    return "\n".join([*rows, *(f"| `{name}` | {REMOVED[name]} |" for name in sorted(REMOVED))]) + "\n"


def test_the_changelog_repeats_the_list():
    assert BLOCK.search(CHANGELOG.read_text(encoding="utf-8"))[0] == f"<!-- removed -->\n{table()}<!-- /removed -->"


@pytest.mark.parametrize("name", REMOVED)
def test_what_to_do_instead_is_a_sentence(name):
    assert REMOVED[name].endswith((".", ")"))
    assert REMOVED[name][0].isupper()


@pytest.mark.parametrize("name", KEYS)
def test_a_key_is_refused(name):
    section, key = name.split(".")
    table = load_table(None)
    table.setdefault(section, {})[key] = 77  # no key had this default
    with pytest.raises(ConfigError, match=re.escape(gone(name))):
        build_config(table, "old.toml")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_refused(name):
    method = name.split('"')[1]
    with pytest.raises(ConfigError, match=re.escape(gone(name))):
        build_config({"method": {"name": method}}, "old.toml")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_the_package_is_refused(name):
    with pytest.raises(ConfigError, match=re.escape(gone(name))):
        load_table(Path(name.removeprefix("config ")))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_or_its_option_is_refused(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*name.split()[1:], "anything"])
    assert (ended.value.code, capsys.readouterr().err) == (2, f"idpgan: {gone(name)}\n")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_python_is_refused(name):
    room, _, attribute = name.rpartition(".")
    with pytest.raises(ImportError, match=re.escape(gone(name))):
        getattr(importlib.import_module(room), attribute)
    with pytest.raises(ImportError, match=re.escape(gone(name))):
        exec(f"from {room} import {attribute}")


def test_what_never_was_is_not_gone():
    assert gone("model.width") is None
    assert SINCE == "0.4.0"


if __name__ == "__main__":
    text = CHANGELOG.read_text(encoding="utf-8")
    CHANGELOG.write_text(BLOCK.sub(lambda found: f"{found[1]}{table()}{found[2]}", text), encoding="utf-8")
