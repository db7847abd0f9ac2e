"""Copies of a release by Git, download caches and file managers: what these change is noted, and hides nothing else."""

import pytest

from idpgan.commands import main
from idpgan.kinds import verify
from idpgan.models.checkpoint import load_generator
from tests.release.forging import (
    linked,
    raw,
    said,
)

NAMES = ("README.md", "config.json", "privacy.json", "samples.png", "generator.safetensors")


TEXTS = NAMES[:3]


def turned(*names):
    def apply(folder):
        for name in names:
            (folder / name).write_bytes((folder / name).read_bytes().replace(b"\n", b"\r\n"))

    return apply


HARMLESS = {
    "all links, as in a download cache": (lambda f: [linked(name, name)(f) for name in NAMES], NAMES, "links"),
    "one link": (linked("privacy.json"), ("privacy.json",), "links"),
    ".DS_Store": (raw(".DS_Store", "x"), (".DS_Store",), "no part of the release"),
    "a clone": (
        lambda f: ((f / ".git").mkdir(), raw(".gitattributes", "* text=auto")(f)),
        (".git", ".gitattributes"),
        "no part of the release",
    ),
    "Windows": (
        lambda f: (raw("desktop.ini", "x")(f), raw("Thumbs.db", "x")(f)),
        ("Thumbs.db", "desktop.ini"),
        "no part of the release",
    ),
    "line ends of Git": (turned(*TEXTS), TEXTS, "core.autocrlf"),
    "of the card": (turned("README.md"), ("README.md",), "core.autocrlf"),
    "of privacy.json": (turned("privacy.json"), ("privacy.json",), "core.autocrlf"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_download_caches_git_and_systems_do_is_noted_and_the_release_is_consistent(release, name, caplog, capsys):
    """By `verify`, and by what loads a release: it says nothing of them."""
    change, names, word = HARMLESS[name]
    change(release)
    found = verify(release)
    assert found.problems == ()
    (note,) = found.notes
    assert word in note
    assert all(name in note for name in names)
    assert found.to_json()["notes"] == [note]
    with pytest.raises(SystemExit):
        main(["verify", str(release)])
    assert f"note: {note}\n" in capsys.readouterr().out
    assert load_generator(release).classes
    assert caplog.text == ""


@pytest.mark.parametrize(
    "forge",
    [
        lambda f: (said(epsilon=0.1)(f), turned(*TEXTS)(f)),
        lambda f: (raw("README.md", (f / "README.md").read_text() + "more")(f), turned(*TEXTS)(f)),
        lambda f: raw("config.json", (f / "config.json").read_bytes().replace(b"\n", b"\r"))(f),
        lambda f: raw("privacy.json", (f / "privacy.json").read_bytes().replace(b"\n", b"\r\n ", 1))(f),
        raw(".private.png", "x"),
        raw(".gitprivate.npz", "x"),
        raw("DS_Store", "x"),
    ],
)
def test_line_ends_and_names_of_systems_hide_no_other_change(release, forge):
    forge(release)
    assert not verify(release).consistent
