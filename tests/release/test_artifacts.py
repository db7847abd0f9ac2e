"""Releases of images and of a stream: written, verified, forged, and paid for."""

import dataclasses
import io
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from idpgan.continual import ContinualCounter
from idpgan.errors import InputError
from idpgan.kinds import KINDS, verify
from idpgan.privacy import Budget, BudgetError, Ledger, Noise, Relation, Unit
from idpgan.publish import METHODS, release
from idpgan.release.images import MOST_IMAGES, ImagesArtifact
from tests.publish.pictures import pictures
from tests.release.forging import (
    config,
    document_of,
    edit,
    linked,
    other_event,
    pipe,
    put_file,
    raw,
    said,
    setting_of,
    somebody,
    stated,
    verdict,
    with_hash,
    with_text,
)

IMAGES = pictures(9, 6, 5)
FAST = {"lra": {"sweeps": 2}, "lrm": {"iterations": 1}}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "release"
    release(IMAGES, "lap", epsilon=2.0, unit="column").write(folder, "nine drawings")
    return folder


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streamed") / "release"
    counter = ContinualCounter(epsilon=1.0, horizon=20)
    counter.write(folder, counter.release([3, 0, 5, 1]), "visits")
    return folder


@pytest.fixture
def images(published, tmp_path):
    return shutil.copytree(published, tmp_path / "release")


@pytest.fixture
def stream(streamed, tmp_path):
    return shutil.copytree(streamed, tmp_path / "stream")


# Images --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", list(METHODS))
def test_every_publisher_writes_what_verifies(tmp_path, method):
    released = release(IMAGES, method, epsilon=1.0, accept_unsound=True, **FAST.get(method, {}))
    released.write(tmp_path / "release")
    found = verify(tmp_path)  # the folder above it too
    assert found.problems == ()
    assert found.report == released.privacy
    assert (found.recomputed < 1.0001) == released.privacy.private == METHODS[method].sound
    assert torch.equal(found.artifact.images[:, 0], released.to_uint8())
    card = (tmp_path / "release" / "README.md").read_text()
    assert ("**NOT private.**" in card) == (not METHODS[method].sound)
    assert "licens" in card.split("---")[1]
    assert sorted(path.name for path in (tmp_path / "release" / "images").iterdir())[0] == "000000.png"


@pytest.mark.parametrize("options", [{"delta": 1e-4}, {"delta": 1e-4, "law": "gaussian"}, {"noise": Noise.fixed(1)}])
def test_every_way_of_noise_verifies(tmp_path, options):
    release(IMAGES, "lap", epsilon=1, unit="column", **options).write(tmp_path / "release")
    found = verify(tmp_path)
    assert found.problems == ()
    assert found.report.private == ("noise" not in options)
    assert ("FIXED SEED" in (tmp_path / "release" / "README.md").read_text()) == ("noise" in options)


def pixel(content):
    """The same picture, one pixel of it changed."""
    array = np.array(Image.open(io.BytesIO(content)))
    array[0, 0] ^= 255
    return encoded(array)


def encoded(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return buffer.getvalue()


def turned(content):
    return encoded(np.array(Image.open(io.BytesIO(content))).T.copy())


def colored(content):
    return encoded(np.array(Image.open(io.BytesIO(content)).convert("RGB")))


def interlude(content):
    """A chunk of its own before the end."""
    import struct
    import zlib

    body = b"teXt" + b"members: 0, 7"
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return content[:-12] + chunk + content[-12:]


def behind_the_pixels(content):
    """More bytes in the chunk of pixels than the pixels take."""
    import struct
    import zlib

    place = content.index(b"IDAT")
    (length,) = struct.unpack_from(">I", content, place - 4)
    body = b"IDAT" + content[place + 4 : place + 4 + length] + b"members: 0, 7"
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return content[: place - 4] + chunk + content[place + 8 + length :]


FIRST = "images/000000.png"
FORGED_IMAGES = {
    "pixel": (lambda f: (f / FIRST).write_bytes(pixel((f / FIRST).read_bytes())), "images/000000.png was changed"),
    "pixel, hash mended": (with_hash(FIRST, pixel), "does not show the images"),
    "another picture": (with_hash("samples.png", somebody), "does not show the images"),
    "extra text chunk": (with_hash(FIRST, with_text), "more than pixels"),
    "extra chunk": (with_hash(FIRST, interlude), "more than pixels"),
    "bytes behind the pixels": (with_hash(FIRST, behind_the_pixels), "more than pixels"),
    "bytes behind the end": (with_hash(FIRST, lambda content: content + b"x"), "more than pixels"),
    "turned": (with_hash(FIRST, turned), "is not an 8-bit picture of 6 x 5"),
    "colored": (with_hash(FIRST, colored), "is not an 8-bit picture"),
    "no picture": (with_hash(FIRST, lambda content: b"x"), "images/000000.png is damaged"),
    "cut off": (with_hash(FIRST, lambda content: content[:50]), "images/000000.png is damaged"),
    "damaged": (
        with_hash(FIRST, lambda content: content[:-20] + b"\xff" + content[-19:]),
        "images/000000.png is damaged",
    ),
    "huge": (with_hash(FIRST, lambda content: content + bytes(1 << 20)), "at most"),
    "extra file": (raw("notes.csv", "x"), "notes.csv does not belong"),
    "extra image": (raw("images/000009.png", "x"), "images/000009.png does not belong"),
    "extra folder": (lambda f: (f / "images" / "more").mkdir(), "images/more does not belong"),
    "image missing": (lambda f: (f / FIRST).unlink(), "images/000000.png is missing"),
    "image a pipe": (pipe(FIRST), "images/000000.png is a folder, a pipe"),
    "images behind a link": (linked("images"), "images is a link or a file"),
    "N = 8": (stated(num_private=8), "num_private = 8, but the settings say 9"),
    "N = 8 everywhere": (
        lambda f: (
            setting_of(num=8)(f),
            config(lambda c: c["images"].update(num=8))(f),
            edit(f, lambda d: (d.update(num_private=8), d["files"].pop("images/000008.png"))),
        ),
        "images/000008.png does not belong",
    ),
    "N = 10 in the settings": (setting_of(num=10), "are not 10 grey ones"),
    "N = 10 of images": (config(lambda c: c["images"].update(num=10)), "images/000009.png is missing"),
    "N = 10^9": (config(lambda c: c["images"].update(num=10**9)), "less than or equal to 100000"),
    "N = true": (config(lambda c: c["images"].update(num=True)), "num = True"),
    "huge images": (config(lambda c: c["images"].update(image_shape=[1, 10**6, 10**6])), "cannot be released"),
    "public images invented": (stated(num_public=3), "num_public = 3, but the settings say 0"),
    "unit in the settings": (setting_of(unit="pixel"), "not those of the settings"),
    "unknown unit": (setting_of(unit="person"), "is not a publisher"),
    "unit everywhere": (
        lambda f: (setting_of(unit="image")(f), other_event(unit=Unit.IMAGE)(f), stated(unit="image")(f)),
        "not those of the settings",
    ),
    "epsilon in the settings": (setting_of(epsilon=0.1), "not those of the settings"),
    "epsilon proven": (said(epsilon=0.1), "the events cost"),
    "epsilon infinite": (setting_of(epsilon=float("inf")), "Infinity is not a JSON number"),
    "event with more noise": (other_event(noise_multiplier=50.0), "not those of the settings"),
    "charged twice": (other_event(count=2), "exceed the target"),
    "delta": (stated(delta=1e-5), "the settings state epsilon at 0"),
    "delta everywhere": (lambda f: (setting_of(delta=0.5)(f), stated(delta=0.5)(f)), "below 1/N"),
    "law": (setting_of(options={"law": "gaussian"}), "no pure guarantee"),
    "unknown option": (setting_of(options={"law": "laplace", "rank": 1}), "rank"),
    "unknown method": (setting_of(method="lep"), "is not a publisher"),
    "unsound method": (setting_of(method="mm", options={}), "not those of the settings"),
    "another shape": (setting_of(shape=[5, 6]), "are not 9 grey ones of 5 x 6"),
    "a shape that no memory holds": (
        setting_of(method="lap-wiener", shape=[10**6, 10**6]),
        "are not 9 grey ones of 1000000 x 1000000",
    ),
    "a shape beyond 64 bits": (setting_of(method="lap-wiener", shape=[2**70, 1]), "are not 9 grey ones"),
    "data of two lines": (setting_of(data="a\nb"), "one printable line"),
    "more settings": (setting_of(note=1), "note"),
    "kind generator": (config(lambda c: c.update(kind="generator")), "does not describe a generator"),
    "kind unknown": (config(lambda c: c.update(kind="magic")), "its kind is none of"),
    "kind a list": (config(lambda c: c.update(kind=[])), "its kind is none of"),
    "described by nothing": (config(lambda c: c.pop("images")), "images of config.json"),
    "card": (lambda f: put_file(f, "README.md", "# private"), "is not the card"),
    "head of the card": (
        lambda f: put_file(f, "README.md", (f / "README.md").read_text().replace('"unknown"', '"mit"', 1)),
        "is not the card",
    ),
}


@pytest.mark.parametrize("name", FORGED_IMAGES)
def test_forged_images_are_found_out(images, name):
    assert verdict(images) == ""
    forge, word = FORGED_IMAGES[name]
    forge(images)
    assert word in verdict(images)


def test_the_tools_of_the_forger_change_nothing_by_themselves(images, stream):
    for folder in (images, stream):
        edit(folder, lambda document: None)
        config(lambda content: None)(folder)
        assert verdict(folder) == ""
    setting_of(options={"law": "laplace"})(images)  # a default that is written out says nothing else
    assert verdict(images) == ""


def test_what_was_published_is_not_written_over(images):
    released = release(IMAGES, "lap", epsilon=1.0)
    before = (images / "privacy.json").read_bytes()
    with pytest.raises(InputError, match="not written over"):
        released.write(images)
    assert (images / "privacy.json").read_bytes() == before
    with pytest.raises(InputError, match="printable"):
        released.write(images.parent / "new", "a\nb")
    with pytest.raises(InputError, match=f"at most {MOST_IMAGES:,}"):
        ImagesArtifact.of(torch.zeros(1, dtype=torch.uint8).expand(MOST_IMAGES + 1, 1, 1, 1))
    assert not (images.parent / "new").exists()


# The ledger ----------------------------------------------------------------------------------------------------


def test_publications_are_charged_before_any_noise_and_add_up(tmp_path):
    ledger = Ledger(Unit.COLUMN, Relation.REPLACE_ONE, Budget(2.5, 0.0), tmp_path / "ledger.json")
    first = release(IMAGES, "lap", epsilon=1.0, unit="column", ledger=ledger)
    release(IMAGES, "lap", epsilon=1.0, unit="column", ledger=ledger)
    assert ledger.epsilon(0.0) == pytest.approx(2 * first.privacy.proven.epsilon)
    noise = Noise.fixed(1)
    before = noise.integers(100, (4,)).tolist()
    noise = Noise.fixed(1)
    with pytest.raises(BudgetError, match="exceed the target"):
        release(IMAGES, "lap", epsilon=1.0, unit="column", ledger=ledger, noise=noise)
    assert noise.integers(100, (4,)).tolist() == before  # nothing was drawn
    assert ledger.epsilon(0.0) < 2.5
    first.write(tmp_path / "release")  # its own charge, not the other's
    assert verify(tmp_path).problems == ()


def test_a_release_of_several_charges_that_the_ledger_cannot_pay_together_charges_none():
    ledger = Ledger(Unit.PIXEL, Relation.REPLACE_ONE, Budget(0.7, 0.0))  # enough for the first of two
    with pytest.raises(BudgetError, match="Nothing was read"):
        release(IMAGES, "swp-sound", epsilon=1.0, ledger=ledger)
    assert ledger.events == ()


def test_a_release_of_one_pixel_with_three_charges_verifies(tmp_path):
    release(torch.zeros(2, 1, 1), "sort-swp-sound", epsilon=1.0).write(tmp_path / "release")
    assert verdict(tmp_path / "release") == ""


def test_a_name_with_brackets_removes_nobody_elses_leftovers(tmp_path):
    other = tmp_path / ".other.0.part"
    other.mkdir()
    release(IMAGES, "lap", epsilon=1.0).write(tmp_path / "[o]ther")
    assert other.is_dir()


def test_a_ledger_of_another_unit_is_refused(tmp_path):
    ledger = Ledger(Unit.IMAGE, Relation.REPLACE_ONE)
    with pytest.raises(BudgetError, match="counts unit image"):
        release(IMAGES, "lap", epsilon=1.0, unit="column", ledger=ledger)
    with pytest.raises(BudgetError, match="zero-out-one"):
        release(IMAGES, "lap", epsilon=1.0, unit="column", ledger=Ledger(Unit.COLUMN, Relation.ZERO_OUT))
    assert ledger.events == ()


def test_an_unsound_release_makes_the_ledger_infinite():
    ledger = Ledger(Unit.COLUMN, Relation.REPLACE_ONE)
    release(IMAGES, "sra", epsilon=1.0, accept_unsound=True, ledger=ledger)
    assert ledger.epsilon(1e-5) == float("inf")


def test_what_is_refused_is_not_charged():
    ledger = Ledger(Unit.COLUMN, Relation.REPLACE_ONE)
    for arguments in ({"epsilon": 0.0}, {"epsilon": 1.0, "rank": 3}, {"epsilon": 1.0, "law": "gaussian"}):
        with pytest.raises(InputError):
            release(IMAGES, "lap", unit="column", ledger=ledger, **arguments)
    assert ledger.events == ()


# A stream ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 2, 6)])
@pytest.mark.parametrize(("horizon", "integer"), [(6, True), (None, True), (None, False)])
def test_every_stream_writes_what_verifies(tmp_path, shape, horizon, integer):
    counter = ContinualCounter(0.5, horizon, integer, noise=Noise.fixed(1) if shape == (6,) else None)
    answers = counter.release(torch.ones(shape, dtype=torch.int64 if integer else torch.float64))
    counter.write(tmp_path / "release", answers)
    found = verify(tmp_path)
    assert found.problems == ()
    assert found.report == counter.privacy
    assert found.report.private == (shape != (6,))
    assert torch.equal(found.artifact.answers, answers.reshape(-1, 6))


def test_only_all_answers_are_a_release(tmp_path):
    counter = ContinualCounter(1.0)
    answers = counter.release([1, 2, 3])
    for wrong in (answers[:2], answers[None], torch.cat([answers, answers]), torch.tensor([1, 3, 6]) + 1000):
        with pytest.raises(InputError, match="are not the 3 answers"):
            counter.write(tmp_path / "release", wrong)
    with pytest.raises(InputError, match="printable"):
        counter.write(tmp_path / "release", answers, "a\nb")
    assert list(tmp_path.iterdir()) == []


def answers_of(change):
    return with_hash("answers.csv", lambda content: change(content.decode()).encode())


FORGED_STREAMS = {
    "answers changed": (raw("answers.csv", "x"), "answers.csv was changed"),
    "row more": (answers_of(lambda text: text + "5,1\n"), "does not hold 4 answers"),
    "row fewer": (answers_of(lambda text: text[: text.rindex("4,")]), "does not hold 4 answers"),
    "column more": (answers_of(lambda text: text.replace("\n", ",7\n")), "does not hold 4 answers"),
    "a comment": (answers_of(lambda text: "# members\n" + text), "answers.csv"),
    "other head": (answers_of(lambda text: text.replace("answer", "count")), "not written as"),
    "spaces": (answers_of(lambda text: text.replace(",", ", ")), "not written as"),
    "leading zero": (answers_of(lambda text: text.replace("\n1,", "\n1,0")), "not written as"),
    "no number": (answers_of(lambda text: text.replace("\n1,", "\n1,x")), "not written as"),
    "beyond 64 bits": (answers_of(lambda text: text.replace("\n1,", "\n1,9" + 18 * "9").split("\n", 1)[0]), "answers"),
    "not ASCII": (with_hash("answers.csv", lambda content: content + b"\xff\n"), "not written as"),
    "real answers": (config(lambda c: c["stream"].update(integer=False)), "not written as"),
    "real settings": (setting_of(integer=False), "not of the kind"),
    "epsilon": (setting_of(epsilon=0.1), "not those of the settings"),
    "epsilon proven": (said(epsilon=0.1), "the events cost"),
    "horizon": (setting_of(horizon=3), "beyond the horizon = 3"),
    "mechanism": (setting_of(mechanism="magic"), "mechanism"),
    "charged twice": (other_event(count=2), "exceed the target"),
    "unit": (lambda f: (other_event(unit=Unit.PERSON)(f), stated(unit="person")(f)), "not those of the settings"),
    "delta": (stated(delta=1e-5), "state epsilon at 0"),
    "N": (stated(num_private=5), "num_private = 5, but the settings say 4"),
    "values": (config(lambda c: c["stream"].update(values=5)), "does not hold 5 answers"),
    "too many values": (config(lambda c: c["stream"].update(values=1 << 27, series=1 << 27)), "more than fit"),
    "curator's file": (raw("state.json", "{}"), "state.json does not belong"),
    "images": (lambda f: (f / "images").mkdir(), "images does not belong"),
}


@pytest.mark.parametrize("name", FORGED_STREAMS)
def test_forged_streams_are_found_out(stream, name):
    assert verdict(stream) == ""
    forge, word = FORGED_STREAMS[name]
    forge(stream)
    assert word in verdict(stream)


# One kind of thing ---------------------------------------------------------------------------------------------


def test_a_new_kind_is_one_class_and_one_row(stream):
    """Nothing but the table knows the kinds: without its row a stream is refused, under another name it is read."""
    from idpgan.release.verify import verify_release

    others = {name: kind for name, kind in KINDS.items() if name != "stream"}
    assert "its kind is none of" in verify_release(stream, others).problems[0]

    class Renamed(KINDS["stream"].artifact):
        kind = "tally"

    config(lambda content: content.update(kind="tally", tally=content.pop("stream")))(stream)
    content = json.loads((stream / "config.json").read_text())
    ordered = {"kind": "tally", "tally": content["tally"], "settings": content["settings"]}
    put_file(stream, "config.json", json.dumps(ordered, indent=2) + "\n")
    renamed = {**others, "tally": dataclasses.replace(KINDS["stream"], artifact=Renamed)}
    assert verify_release(stream, renamed).problems == ()
    assert document_of(stream)["format"] == "idpgan release 6"
