"""Signed marks: made and read by c2pa-python, refused where a picture was changed; the detector of `idpgan verify`."""

import datetime
import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from idpgan.commands import app
from idpgan.errors import InputError
from idpgan.kinds import verify
from idpgan.release.detector import layers_of
from idpgan.release.mark import DigitalSource, Mark
from idpgan.release.signature import Signer, is_signed, unsigned
from tests.publish.pictures import pictures

AGGREGATE = "checkpoints/digits-aggregate-eps10"
SIGNED = "valid, by Signer (Test)"


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def signing(tmp_path_factory):
    """A certificate that a test authority made, its key, and a key that is not its own."""
    pytest.importorskip("c2pa")
    folder = tmp_path_factory.mktemp("signing")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
    now = datetime.datetime.now(datetime.UTC)

    def certificate(name, key, *, authority):
        names = [
            x509.Name(
                [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Test"), x509.NameAttribute(NameOID.COMMON_NAME, n)]
            )
            for n in (name, "Authority")
        ]
        usage = x509.KeyUsage(True, False, False, False, False, authority, authority, False, False)
        made = x509.CertificateBuilder(names[1], names[0], key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(30))
        made = made.add_extension(x509.BasicConstraints(authority, None), True).add_extension(usage, True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), False)
        if not authority:
            made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), False)
        return made.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    chain = certificate("Signer", keys[1], authority=False) + certificate("Authority", keys[0], authority=True)
    (folder / "cert.pem").write_bytes(chain)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    for name, key in zip(("key.pem", "other.pem"), keys[1:], strict=True):
        (folder / name).write_bytes(key.private_bytes(*form))
    return ("--sign", folder / "cert.pem", "--key", folder / "key.pem")


@pytest.fixture
def picture(signing, tmp_path):
    """One signed picture of a generator."""
    result = run("sample", AGGREGATE, "--num", 1, "--labels", 3, "--seed", 1, "--out", tmp_path / "one", *signing)
    assert result.exit_code == 0, result.output
    return next((tmp_path / "one").rglob("*.png"))


def test_a_drawn_picture_says_by_whom_it_was_signed(picture):
    result = run("verify", picture)
    assert result.exit_code == 0
    assert "metadata:  trainedAlgorithmicMedia" in result.output
    assert SIGNED in result.output
    assert "no time stamp; it says trainedAlgorithmicMedia" in result.output


def test_a_signature_changes_no_pixel(picture, tmp_path):
    run("sample", AGGREGATE, "--num", 1, "--labels", 3, "--seed", 1, "--out", tmp_path / "bare")
    plain = next((tmp_path / "bare").rglob("*.png")).read_bytes()
    assert unsigned(picture.read_bytes()) == plain
    assert not is_signed(plain)


def with_chunk(content, kind, change):
    """Return a PNG with the body of its first chunk of a kind changed, and its checksum mended."""
    at = content.index(kind) - 4
    (length,) = struct.unpack_from(">I", content, at)
    body = kind + change(content[at + 8 : at + 8 + length])
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return content[:at] + chunk + content[at + 12 + length :]


def other_pixel(content):
    with Image.open(io.BytesIO(content)) as image:
        pixels = np.array(image)
    pixels[0, 0] ^= 1
    return with_chunk(content, b"IDAT", lambda _: zlib.compress(b"".join(b"\0" + row.tobytes() for row in pixels)))


def other_words(content):
    return with_chunk(content, b"iTXt", lambda body: body.replace(b"trainedAlgorithmicMedia", b"digitalCapture"))


@pytest.mark.parametrize("tamper", [other_pixel, other_words])
def test_a_picture_that_was_changed_is_refused(picture, tamper):
    picture.write_bytes(tamper(picture.read_bytes()))
    result = run("verify", picture)
    assert result.exit_code == 1
    assert "signature: BROKEN" in result.output or "signature: damaged" in result.output


def test_a_signed_publication_is_consistent_until_a_picture_changes(signing, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for index, image in enumerate(pictures(3, 12, 12)):
        Image.fromarray((image.numpy() * 255).astype(np.uint8)).save(photos / f"{index}.png")
    published = run(
        "publish", photos, "--method", "lap", "--epsilon", 2, "--unit", "column", "--out", tmp_path / "out", *signing
    )
    assert published.exit_code == 0, published.output
    release = tmp_path / "out" / "release"
    found = verify(release)
    assert found.problems == ()
    assert any("4 pictures: signature valid, by Signer (Test)" in note for note in found.notes)
    assert not any(is_signed(sheet.read_bytes()) for sheet in (tmp_path / "out" / "curator").glob("*.png"))
    first = next(release.rglob("images/*.png"))
    first.write_bytes(other_pixel(first.read_bytes()))
    assert any("signature BROKEN" in problem for problem in verify(release).problems)


def test_without_the_extra_a_signature_is_not_checked_and_says_so(picture, monkeypatch):
    monkeypatch.setitem(sys.modules, "c2pa", None)
    assert (
        'not checked: signatures need the package c2pa-python: pip install "idpgan[marks]"'
        in layers_of(picture).signature.text
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--sign", "cert.pem"), "--sign CERT and --key KEY go together"),
        (("--sign", "cert.pem", "--key", "key.pem", "--no-mark"), "Leave one of them out"),
        (("--sign", "cert.pem", "--key", "other.pem"), "sign nothing"),
        (("--sign", "key.pem", "--key", "key.pem"), "sign nothing"),
        (("--sign", "cert.pem", "--key", "cert.pem"), "sign nothing"),
        (("--sign", "absent.pem", "--key", "key.pem"), "absent.pem"),
    ],
)
def test_what_cannot_sign_is_one_line_and_nothing_is_written(signing, tmp_path, arguments, words):
    folder = signing[1].parent
    given = [folder / each if each.endswith(".pem") else each for each in arguments]
    result = run("sample", AGGREGATE, "--num", 1, "--out", tmp_path / "out", *given)
    assert isinstance(result.exception, InputError)
    assert words in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_an_npz_has_no_picture_to_sign(signing, tmp_path):
    result = run("sample", AGGREGATE, "--num", 1, "--out", tmp_path / "out.npz", *signing)
    assert "Name a folder: --out out" in str(result.exception)


def test_a_picture_without_marks_proves_nothing(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "plain.png")
    result = run("verify", tmp_path / "plain.png")
    assert result.exit_code == 0
    assert "nothing says how it was made, which proves nothing" in result.output


def test_what_is_no_picture_is_one_line(tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    result = run("verify", tmp_path / "text.png")
    assert "is no picture that can be read" in str(result.exception)


def test_marks_of_other_hands_are_read_too(tmp_path):
    term = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeSynthetic"
    for form in (
        f' e:DigitalSourceType="{term}"/>',
        f'><e:DigitalSourceType rdf:resource="{term}"/>',
        f"><e:DigitalSourceType>{term}<",
    ):
        Image.new("RGB", (8, 8)).save(tmp_path / "other.jpg", xmp=f"<x><rdf:Description{form}</x>".encode())
        assert layers_of(tmp_path / "other.jpg").metadata == "compositeSynthetic"
    label = '<TC260:AIGC>{"Label":"2","ContentProducer":"x"}</TC260:AIGC>'
    Image.new("RGB", (8, 8)).save(tmp_path / "label.webp", xmp=label.encode())
    assert layers_of(tmp_path / "label.webp").metadata == "AIGC label 2"


def test_only_what_a_trained_network_drew_has_the_chinese_label():
    marks = {source: Mark(source, "0.4.0", "a" * 64).chunk for source in DigitalSource}
    labeled = {source for source, chunk in marks.items() if b'<TC260:AIGC>{"Label":"1",' in chunk}
    assert labeled == {DigitalSource.TRAINED, DigitalSource.COMPOSITE}


def test_a_mark_of_an_earlier_version_is_taken_off_and_another_is_not():
    buffer = io.BytesIO()
    Image.new("L", (8, 8)).save(buffer, "PNG")
    mark, png = Mark(DigitalSource.TRAINED, "0.3.0", "a" * 64), buffer.getvalue()
    label = mark.chunk[mark.chunk.index(b"\n xmlns:TC260") : mark.chunk.index(b"\n</rdf:RDF>")]
    body = mark.chunk[4:-4].replace(label, b"/>")
    earlier = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    assert mark.off(png[:33] + earlier + png[33:]) == png
    assert mark.off(mark.on(png)) == png
    other = Mark(DigitalSource.TRAINED, "0.3.0", "b" * 64).on(png)
    assert mark.off(other) == other


def test_a_signer_signs_what_another_reader_takes_apart(signing, tmp_path):
    """The chunk lies right behind the head, with a checksum that is right; Pillow reads the picture around it."""
    buffer = io.BytesIO()
    Image.new("RGB", (70, 64), "red").save(buffer, "PNG")
    signed = Mark(DigitalSource.FORMULA, "0.4.0", "c" * 64, Signer(signing[1], signing[3])).on(buffer.getvalue())
    (length,) = struct.unpack_from(">I", signed, 33)
    assert signed[37:41] == b"caBX"
    assert struct.unpack_from(">I", signed, 41 + length)[0] == zlib.crc32(signed[37 : 41 + length])
    with Image.open(io.BytesIO(signed)) as image:
        assert image.getpixel((3, 3)) == (255, 0, 0)
