"""What a forger does to a release folder: changes one thing, and makes hashes and card fit again."""

import dataclasses
import hashlib
import io
import json
import os
import shutil
import types

import numpy as np
from PIL import Image, PngImagePlugin
from safetensors.torch import load_file, save_file

from idpgan.audit.bounds import cap, epsilon_bound
from idpgan.errors import InputError
from idpgan.kinds import KINDS, verify
from idpgan.privacy.ledger import Ledger
from idpgan.release.artifact import describe_release
from idpgan.release.folder import render_card
from idpgan.release.mark import DigitalSource, Mark
from idpgan.release.statement import FORMAT, read_privacy


def verdict(folder):
    """All that is said of a release, as one text; empty = consistent."""
    try:
        found = verify(folder)
    except InputError as error:
        text = str(error)
    else:
        assert found.consistent == (not found.problems) == found.to_json()["consistent"]
        text = " ".join(found.problems)
    assert "\n" not in text
    text.encode()  # can be printed
    return text


# A forger ------------------------------------------------------------------------------------------------------


def document_of(folder):
    return json.loads((folder / "privacy.json").read_text())


def entry(document, value, *shared):
    """Return an event or a guarantee as it stands in privacy.json: without what stands above it, since format 6."""
    table, shared = value.to_json(), (*shared, "unit", "relation") if document["format"] == FORMAT else ()
    return {key: value for key, value in table.items() if key not in shared or value != document[key]}


def events_of(folder):
    """All charges that a release states."""
    return list(read_privacy(folder / "privacy.json").events)


def put(folder, document):
    """Write privacy.json with the hashes of what lies there, and the marks on its pictures."""
    if document.get("mark") in list(DigitalSource) and isinstance(document["idpgan"], str):
        identity = next(folder / name for name in ("generator.safetensors", "config.json") if (folder / name).exists())
        mark = Mark(
            DigitalSource(document["mark"]), document["idpgan"], hashlib.sha256(identity.read_bytes()).hexdigest()
        )
        for picture in folder.rglob("*.png"):
            if picture.is_file() and (content := picture.read_bytes()).startswith(b"\x89PNG"):
                picture.write_bytes(mark.on(without_mark(content)))
    for name in document["files"]:
        if (folder / name).is_file():
            document["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "privacy.json").write_text(json.dumps(document, indent=2) + "\n")


def without_mark(content):
    """Return a PNG without any mark, whatever it says."""
    behind = 45 + int.from_bytes(content[33:37], "big")
    return content[:33] + content[behind:] if content[37:58] == b"iTXtXML:com.adobe.xmp" else content


def put_file(folder, name, content):
    """Replace a file and mend its hash."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    put(folder, document_of(folder))


PLAIN = types.SimpleNamespace(  # a run that gives no public picture out
    model=types.SimpleNamespace(drawn=types.SimpleNamespace(agreed=0), shows_public=False)
)


def edit(folder, change):
    """Change privacy.json as a forger would: the card is rendered again, hashes are mended."""
    document = document_of(folder)
    change(document)
    put(folder, document)
    try:
        content = (folder / "config.json").read_bytes()
        artifact, config, _ = describe_release(content, KINDS)
        settings, statement = config["settings"], read_privacy(folder / "privacy.json")
        method = settings.get("method", "continual-counter")  # a stream has one
        facts = types.SimpleNamespace(
            data=settings["data"]["name"] if isinstance(settings["data"], dict) else settings["data"],
            method=method["name"] if isinstance(method, dict) else method,
            license=None,
            data_license=None,
            run=PLAIN,
        )
        put_file(folder, "README.md", render_card(statement, facts, artifact.card, artifact))
    except (InputError, KeyError, TypeError, UnicodeEncodeError):
        pass  # no card can be rendered of that


def said(**changes):
    """Edit the report's proven entry."""
    return lambda folder: edit(folder, lambda document: document["report"]["proven"].update(changes))


def stated(**changes):
    return lambda folder: edit(folder, lambda document: document.update(changes))


def risk(**changes):
    return lambda folder: edit(folder, lambda document: document["risk"].update(changes))


def report(**changes):
    return lambda folder: edit(folder, lambda document: document["report"].update(changes))


def charged(*events):
    """Replace the charges and state what they cost, so that the numbers agree with each other."""

    def change(document):
        ledger = Ledger(events[0].unit, events[0].relation)
        for event in events:
            ledger.charge(event)
        document["events"] = [entry(document, event) for event in events]
        document["report"]["proven"] = entry(document, ledger.proven(document["delta"]), "delta")

    return lambda folder: edit(folder, change)


def other_event(**changes):
    """Change the first charge, with all numbers that follow."""

    def apply(folder):
        first = events_of(folder)[0]
        charged(dataclasses.replace(first, **changes))(folder)

    return apply


def config(change):
    """Change config.json, mend hash and card."""

    def apply(folder):
        content = json.loads((folder / "config.json").read_text())
        change(content)
        (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n")
        edit(folder, lambda document: None)

    return apply


def setting(section, **changes):
    return config(lambda content: content["settings"][section].update(changes))


def setting_of(**changes):
    """Change the settings of a publisher or a stream."""
    return config(lambda content: content["settings"].update(changes))


def described(**changes):
    return config(lambda content: content["generator"].update(changes))


def first_class(name):
    return config(lambda content: content["generator"]["classes"].__setitem__(0, name))


def raw(name, content):
    """Replace a file and mend nothing."""
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def with_hash(name, make):
    return lambda folder: put_file(folder, name, make((folder / name).read_bytes()))


MEASURED = float(epsilon_bound(np.array(3358), np.array(20), 50_000, 1e-5, 0.95))
WORDS = (
    f"lower bound at 0.95 confidence, cap {cap(50_000, 0.95, 1e-5):.2f}, 100000 runs per side, right 3358 and wrong 20 "
    "times of 50000, exact log-likelihood ratio, one record absent against present"
)


def audited(epsilon=MEASURED, **changes):
    def change(document):
        proven = document["report"]["proven"]
        document["report"]["audited"] = {**proven, "epsilon": epsilon, "basis": WORDS, **changes}

    return lambda folder: edit(folder, change)


def replaced_text(name, old, new):
    return lambda folder: raw(name, (folder / name).read_text().replace(old, new, 1))(folder)


def linked(name, elsewhere="elsewhere"):
    def apply(folder):
        shutil.move(folder / name, folder.parent / elsewhere)
        (folder / name).symlink_to(folder.parent / elsewhere)

    return apply


def pipe(name):
    def apply(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return apply


def png(make_picture, **options):
    buffer = io.BytesIO()
    make_picture.save(buffer, format=options.pop("form", "PNG"), **options)
    return buffer.getvalue()


def somebody(content):
    """A picture of the same size that the generator did not draw."""
    shape = np.asarray(Image.open(io.BytesIO(content))).shape
    return png(Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)))


def with_text(content):
    note = PngImagePlugin.PngInfo()
    note.add_text("members", "0, 7, 19")
    return png(Image.open(io.BytesIO(content)), pnginfo=note)


def weights(change):
    def apply(folder):
        tensors = load_file(folder / "generator.safetensors")
        change(tensors)
        save_file(tensors, folder / "generator.safetensors")
        put(folder, document_of(folder))

    return apply


def first_float(change):
    def apply(tensors):
        name = next(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.ndim > 1)
        tensors[name] = change(tensors[name])

    return weights(apply)
