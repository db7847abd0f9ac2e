"""The folder to give away: the epsilon in its privacy.json covers everything in it.

The folder is whole or absent, whatever ends the program: it is filled under a hidden name beside its place and then
renamed.

Where a command may write its result: never over files of another origin, never into a release or a run's state.

The card, README.md: what is given away, what its epsilon covers and what it does not, how to load it.

All its sentences are in ``templates/README.md``, but for the report's own. Its head is YAML as the Hugging Face Hub
reads it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import jinja2

from idpgan.config import load_table
from idpgan.data.config import folders_of
from idpgan.errors import InputError
from idpgan.files import (
    CONFIG,
    WEIGHTS,
    json_text,
    parse_json,
    read_plain,
    remove_dead,
    whole_folder,
    write_bytes_atomic,
    write_text_atomic,
)
from idpgan.lazy import torch
from idpgan.own_code import is_own_code
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Unit
from idpgan.release.artifact import Artifact
from idpgan.release.mark import PICTURE, DigitalSource, Mark, identified_by
from idpgan.release.statement import PRIVACY, Settings, Statement
from idpgan.version import made_with

if TYPE_CHECKING:
    from idpgan.models.generator import Generator
    from idpgan.release.signature import Signer


CARD = "README.md"


def write_release(
    target: Path,
    artifact: Artifact,
    settings: Settings,
    report: PrivacyReport,
    events: Sequence[Event],
    signer: Signer | None = None,
) -> None:
    """Write the folder to give away: the artifact's files, config.json, card, and privacy.json with the others' hashes.

    Nothing here is computed from private data except through what a ledger has charged: ``events`` paid for the
    artifact, its picture is drawn from it, and the settings are public. With the events anyone can compute the proven
    epsilon again. ``signer`` signs the pictures, where they are marked.

    Raises:
        InputError: If ``target`` holds a release, or anything that does not belong to a release. An incomplete release
            without privacy.json is replaced, and what a kill left beside it is removed.
    """
    _refuse_foreign(target, artifact)
    remove_dead(target.parent, target.name)
    with whole_folder(target) as folder:
        _refuse_foreign(target, artifact)  # what another process has written since
        artifact.write(folder)
        write_text_atomic(folder / CONFIG, config_text(artifact, settings))
        statement = Statement.of(settings, artifact.describe(), artifact.files(), report, events)
        _put_marks(folder, artifact, statement, signer)
        seal(folder, statement, artifact, card_text(statement, artifact, settings))


def _refuse_foreign(target: Path, artifact: Artifact) -> None:
    """Refuse what lies where a release is to be written, but for an incomplete one."""
    if target.is_symlink() or os.path.lexists(target / PRIVACY) or (os.path.lexists(target) and not target.is_dir()):
        raise InputError(
            f"{target} exists already, and a release is not written over. Move it away or choose another name."
        )
    names = hashed_files(artifact)
    inner = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
    found = (item.relative_to(target).as_posix() for item in target.rglob("*"))
    if foreign := sorted(set(found) - {*names, *inner}):
        raise InputError(
            f"{target} holds {foreign[0]!a}, which is not part of a release. Move it away or choose another name."
        )


def drawn_by(source: DigitalSource, generator: Generator, picture: bytes) -> bytes:
    """Return a PNG that a generator drew, with the mark of its weights; ``source`` is that of a run's pictures."""
    from idpgan.models.checkpoint import weight_bytes

    if not generator.shows_public(torch.zeros(1, generator.latent_dim)).any():  # the law of pictures that come later
        source = DigitalSource.TRAINED
    weights = hashlib.sha256(weight_bytes(generator)).hexdigest()
    return Mark(source, made_with(), weights).on(picture)


def _put_marks(folder: Path, artifact: Artifact, statement: Statement, signer: Signer | None) -> None:
    """Mark all pictures of a folder, where it is stated that they are."""
    mark = statement.mark_by((folder / identified_by(artifact.files())).read_bytes())
    if mark is None:
        return
    mark = dataclasses.replace(mark, signer=signer)
    for picture in [folder / name for name in artifact.files() if name.endswith(PICTURE)]:
        picture.write_bytes(mark.on(picture.read_bytes()))


def config_text(artifact: Artifact, settings: Settings) -> str:
    """Return config.json: the kind of artifact, its description, and the settings it was made with."""
    content = {"kind": artifact.kind, artifact.kind: artifact.describe(), "settings": settings.table}
    return json_text(content)


def card_text(statement: Statement, artifact: Artifact, settings: Settings) -> str:
    """Return README.md as it is written."""
    return render_card(statement, settings, artifact.card, artifact)


def hashed_files(artifact: Artifact) -> tuple[str, ...]:
    """Return the names of all files that privacy.json holds the hashes of, in its order."""
    return (*artifact.files(), CONFIG, CARD)


def seal(folder: Path, statement: Statement, artifact: Artifact, card: str) -> None:
    """Write card and privacy.json into a folder that holds the other files."""
    write_text_atomic(folder / CARD, card)
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in hashed_files(artifact)}
    write_bytes_atomic(folder / PRIVACY, statement.but(files=hashes).content)


_MOST_BYTES = 1 << 26
_HEAD_BYTES = 1000  # first bytes of a page, which contain its format
_CLOSED = ("state", "release")  # folders of a run that no command writes results to


def check_output(
    path: Path, form: str, inputs: Sequence[Path] = (), option: str = "--out", images: Sequence[Path] | None = None
) -> None:
    """Refuse a place for a result before anything is computed for it.

    Args:
        path: The JSON file to be.
        form: The entry "format" of the command's own results: one of them is replaced, nothing else is.
        inputs: What the command reads.
        option: What the user wrote, for the message.
        images: Folders of images, for `refuse_place`; None = it is a place in a run.

    Raises:
        InputError: If the folder is missing or belongs to a release or a run's state or to private images, or the file
            is an input, or anything but an earlier result of the same command.
    """
    where = f"{option} {path}"
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist. Make it first.")
    real = path.parent.resolve() / path.name
    for source in (item.resolve() for item in inputs):
        if real == source:
            raise InputError(f"{where} is what is to be read. Choose another name.")
    refuse_closed(path, where) if images is None else refuse_place(path, where, images)
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    document: Any = None
    if stat.S_ISREG(status.st_mode):
        with contextlib.suppress(ValueError):  # InputErrors too
            document = parse_json(read_plain(path, _MOST_BYTES))
    if not isinstance(document, dict) or document.get("format") != form:
        raise InputError(
            f"{where} exists and is not an earlier result of this command. Choose another name or move it."
        )


def check_page(path: Path, form: str) -> None:
    """Refuse a place for a page of the curator, of which only an earlier one of the same format is overwritten.

    Raises:
        InputError: If it is in a release or a run's state, or anything but such a page lies there.
    """
    refuse_closed(path, f"the report {path}")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path} is not a plain file. Move it away.")
    if path.exists() and f'content="{form}"'.encode() not in path.read_bytes()[:_HEAD_BYTES]:
        raise InputError(f"{path} exists and is not a report of this version of idpgan. Move it away.")


def refuse_closed(path: Path, where: str) -> None:
    """Refuse a file or folder in a release, or in a folder that only training writes; ``where`` begins the message."""
    real = path.parent.resolve() / path.name
    for folder in (real, *real.parents):
        if folder != real and ((folder / WEIGHTS).exists() or (folder / PRIVACY).exists()):
            raise InputError(f"{where} is in a release, and what its epsilon does not cover must not be given away.")
        if folder.name in _CLOSED and (folder.parent / "config.toml").exists():
            raise InputError(f"{where} is in the folder {folder.name}/ of a run, which only training writes.")


def refuse_place(path: Path, where: str, images: Sequence[Path] = ()) -> None:
    """Refuse a place for something new as `refuse_closed` does, and among images, which it would be one of next time.

    Args:
        path: What is to be written, absent or not; links are resolved.
        where: Begins the message.
        images: Folders of images that the command knows. One that `idpgan prepare` made, and one that has a ledger
            beside it, are known by that.

    Raises:
        InputError: Naming the folder.
    """
    from idpgan.data.image_files import LEDGER
    from idpgan.data.metadata import METADATA, PREPARED

    refuse_closed(path, where)
    known = {folder.resolve() for folder in images if folder.is_dir()}
    for real in (path.parent.resolve() / path.name, path.resolve()):
        for folder in (real, *real.parents[:-1]):
            prepared = (folder / PREPARED).is_file() and (folder / METADATA).is_file()
            if folder in known or prepared or folder.with_name(folder.name + LEDGER).is_file():
                raise InputError(
                    f"{where} lies in {folder}, a folder of images, and would be read as one of them next time. Choose "
                    "a place beside it."
                )


def images_of(source: Path) -> list[Path]:
    """Return the folders of images that the run names that a path is or lies in; none where there is no run."""
    for run in (source, *source.absolute().parents[:2]):
        if (run / "config.toml").is_file():
            return folders_of(load_table(run / "config.toml").get("data", {}))
    return []


RECORDS = {
    Unit.IMAGE: "one image with its label",
    Unit.PERSON: "all images of one person",
    Unit.PHOTO: "all images cut out of one photo",
    Unit.COLUMN: "one column of one image",
    Unit.PIXEL: "one pixel of one image",
    Unit.EVENT: "one event, which adds at most 1 to one value",
}
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "#": "&#35;"}


def render_card(statement: Statement, settings: Any, card: str, made: Any) -> str:
    """Return the text of a card. Names are escaped: they can neither draw, nor link, nor add an entry to the head.

    Args:
        statement: The content of privacy.json.
        settings: An `idpgan.release.statement.Settings`: names of data and method, and licenses.
        card: That of the artifact, or "samples" for images that a generator drew.
        made: The artifact, without its content; of samples, what the card says of them.
    """
    report = statement.report
    record = RECORDS.get(report.proven.unit, f"one {report.proven.unit}")
    given = {"statement": statement, "report": report, "settings": settings, "card": card, "made": made}
    return _template().render(given, record=record)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("idpgan.release"),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "plain": plain,
        "yaml": _yaml,
        "epsilon": _epsilon,
        "shape": _shape,
        "conditions": _conditions,
        "listed": _listed,
    }
    environment.tests["own_code"] = is_own_code
    return environment.get_template("README.md")


def plain(text: Any) -> str:
    """Return a text that Markdown and HTML show as it is."""
    shown = "".join(_HTML.get(sign, sign) for sign in str(text))
    return _MARKDOWN.sub(r"\\\1", shown).replace("://", ":&#47;&#47;")


def _shape(shape: Sequence[int]) -> str:
    return f"{shape[1]} x {shape[2]} pixels, {'grey' if shape[0] == 1 else 'RGB'}"


def _conditions(classes: Sequence[str]) -> str:
    return f"conditional on {len(classes)} classes: {_listed(classes)}" if classes else "unconditional"


def _listed(classes: Sequence[str]) -> str:
    """Return names at the end of a sentence, whose point is that of a last name like "o.B."."""
    return ", ".join(map(plain, classes)).removesuffix(".")


def _yaml(value: Any) -> str:
    """Return a value in YAML's flow style, on one line: JSON, with all but printable ASCII escaped as in YAML."""
    return "".join(
        sign
        if sign.isascii() and sign.isprintable()
        else f"\\u{ord(sign):04x}"
        if ord(sign) <= 0xFFFF
        else f"\\U{ord(sign):08x}"
        for sign in json.dumps(value, ensure_ascii=False, allow_nan=False)
    )


def _epsilon(guarantee: Guarantee | None, missing: str = "") -> str:
    """Format one of the three numbers with its delta, unit and relation."""
    if guarantee is None:
        return missing
    epsilon = f"{guarantee.epsilon:.4g}" if guarantee.finite else "**infinite**"
    delta = f", delta = {guarantee.delta:.3g}" if guarantee.delta else ""
    return f"epsilon = {epsilon}{delta}; unit: {guarantee.unit}; {guarantee.relation} ({plain(guarantee.basis)})"
