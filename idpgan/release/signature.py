"""The signed half of what a picture says of itself: a C2PA manifest, written and checked by the library c2pa-python.

All cryptography is that library's. A manifest says what made the picture, in IPTC's words as the packet of
`idpgan.release.mark` does, and binds the whole file but itself by hashes under the signature. It has no time stamp:
that comes from a service on the network, and nothing here goes there. Nor does a list of trusted certificates lie here:
what a signer is worth is the reader's to say.
"""

from __future__ import annotations

import importlib
import io
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from idpgan.errors import InputError
from idpgan.files import printable, read_plain

TERMS = "http://cv.iptc.org/newscodes/digitalsourcetype/"  # of IPTC
AFTER_HEAD = 33  # bytes of a PNG's signature and of its head, IHDR, which comes first: there the library puts its chunk
_CHUNK = b"caBX"
_MOST_BYTES = 1 << 16  # of a certificate chain or a key
_MOST_WORDS = 80  # characters of a name that are shown
_QUIET = {
    "builder": {"thumbnail": {"enabled": False}},
    "verify": {"remote_manifest_fetch": False, "ocsp_fetch": False},
}


class Signer:
    """What signs pictures: a certificate chain and its private key, PEM."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read both, and try them on a picture of one pixel.

        Raises:
            InputError: If the extra is not installed, a file cannot be read, or they sign nothing that is valid.
        """
        self._c2pa = _library()
        chain, secret = (read_plain(path, _MOST_BYTES, follow=True) for path in (certificate, key))
        dot = io.BytesIO()
        Image.new("L", (1, 1)).save(dot, "PNG")
        try:
            info = self._c2pa.C2paSignerInfo(_algorithm(secret).encode(), chain, secret, None)
            self._signer = self._c2pa.Signer.from_info(info)
            tried = self._signed(dot.getvalue(), {"assertions": [_action("trainedAlgorithmicMedia")]})
        except (self._c2pa.C2paError, ValueError, TypeError) as error:
            raise InputError(
                f"--sign {certificate} --key {key} sign nothing ({error}). Give a PEM chain of a certificate that may "
                "sign documents, its own first, and its unencrypted PEM key."
            ) from error
        if unsigned(tried) != dot.getvalue() or not (found := signature_of(tried)).valid:
            raise InputError(f"--sign {certificate}: what it signs is not valid ({found.text}). Take another.")

    def on(self, picture: bytes, term: str, version: str) -> bytes:
        """Return the PNG with a manifest that says what made it, by IPTC's term and the version of idpgan."""
        made = {"name": "idpgan", "version": version}
        return self._signed(picture, {"claim_generator_info": [made], "assertions": [_action(term)]})

    def _signed(self, picture: bytes, manifest: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        with self._c2pa.Context(settings=self._c2pa.Settings.from_dict(_QUIET)) as context:
            self._c2pa.Builder(manifest, context=context).sign(self._signer, "image/png", io.BytesIO(picture), out)
        return out.getvalue()


def signer_of(certificate: Path | None, key: Path | None, *, marked: bool = True) -> Signer | None:
    """Return what --sign and --key ask for, both or none; they go with marks alone."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("--sign CERT and --key KEY go together. Give both, or leave both out.")
    if not marked:
        raise InputError("--sign says that pictures are artificial, and --no-mark does not. Leave one of them out.")
    return Signer(certificate, key)


@dataclass(frozen=True)
class Signature:
    """What the library's reader finds of a manifest.

    Attributes:
        valid: Whether file and manifest are as they were signed.
        text: One line: by whom and what for, or what does not fit.
    """

    valid: bool
    text: str


def signature_of(picture: bytes, kind: str = "image/png") -> Signature:
    """Check the manifest of a picture; nothing is known of it where the extra is not installed."""
    try:
        c2pa = _library()
    except InputError as error:
        return Signature(True, f"not checked: {error}")
    try:
        with c2pa.Context(settings=c2pa.Settings.from_dict(_QUIET)) as context:
            read = json.loads(c2pa.Reader(kind, io.BytesIO(picture), context=context).json())
        active = read["manifests"][read["active_manifest"]]
    except (c2pa.C2paError, ValueError, KeyError) as error:
        absent = "ManifestNotFound" in str(error)
        return Signature(absent, "none" if absent else f"damaged ({plain(error)})")
    if read.get("validation_state") not in ("Valid", "Trusted"):
        codes = {row.get("code", "") for row in read.get("validation_status", ())} - {"signingCredential.untrusted"}
        return Signature(False, f"BROKEN: changed after it was signed ({plain(', '.join(sorted(codes)))})")
    by = active.get("signature_info", {})
    terms = [
        str(action.get("digitalSourceType", "")).rsplit("/", 1)[-1]
        for row in active.get("assertions", ())
        for action in row.get("data", {}).get("actions", ())
    ]
    trusted = "" if read["validation_state"] == "Trusted" else ", a certificate on no list of trusted ones here"
    who = f"{by.get('common_name', '')} ({by.get('issuer', '')})"
    made = ", ".join(filter(None, dict.fromkeys(terms))) or "nothing of how it was made"
    stamped = "" if by.get("time") else ", no time stamp"
    return Signature(True, f"valid, by {plain(who)}{trusted}{stamped}; it says {plain(made)}")


def unsigned(picture: bytes) -> bytes:
    """Return a PNG without its manifest; as it is, where it has none behind its head."""
    if not is_signed(picture):
        return picture
    (length,) = struct.unpack_from(">I", picture, AFTER_HEAD)
    return picture[:AFTER_HEAD] + picture[AFTER_HEAD + 12 + length :]


def is_signed(picture: bytes) -> bool:
    """Whether a PNG has a manifest behind its head."""
    return picture[AFTER_HEAD + 4 : AFTER_HEAD + 8] == _CHUNK


def _library() -> Any:
    try:
        return importlib.import_module("c2pa")
    except ImportError as error:
        raise InputError('signatures need the package c2pa-python: pip install "idpgan[marks]"') from error


def _algorithm(key: bytes) -> str:
    """Return the library's name of the algorithm for a private key, PEM."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    loaded: Any = load_pem_private_key(key, None)
    size = getattr(getattr(loaded, "curve", None), "key_size", 0)
    return {256: "es256", 384: "es384", 521: "es512"}.get(size) or (
        "ps256" if hasattr(loaded, "decrypt") else "ed25519"
    )


def _action(term: str) -> dict[str, Any]:
    made = {"action": "c2pa.created", "digitalSourceType": TERMS + term}
    return {"label": "c2pa.actions.v2", "data": {"actions": [made]}}


def plain(text: object) -> str:
    """Return words of another file on one printable line."""
    line = " ".join(str(text).split())[:_MOST_WORDS]
    return line if printable(line) else ascii(line)
