"""What a picture of anybody says of itself: the metadata and the signature that `idpgan verify PICTURE` looks for.

A mark that is not there proves nothing: a copy that was saved again has lost it. No watermark is looked for, since none
that was tried survives in pictures of this size (benchmarks/RESULTS.md, "Marks").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from idpgan.errors import InputError
from idpgan.files import read_plain
from idpgan.release.signature import TERMS, Signature, plain, signature_of

_MOST_BYTES = 1 << 28
_TERM = re.compile(rf'DigitalSourceType(?:="|[^<>]*?resource="|>)\s*(?:{re.escape(TERMS)})?(\w{{1,60}})')
_TOOL = re.compile(r'CreatorTool(?:="|>)([^"<]{1,80})')
_LABEL = re.compile(r'AIGC(?:="|>)[^<]{0,40}?(?:"|&quot;)Label(?:"|&quot;):\s*(?:"|&quot;)(\w)')


@dataclass(frozen=True)
class Layers:
    """What was found of each layer, a line each.

    Attributes:
        metadata: Of the XMP packet; empty = nothing that speaks of how the picture was made.
        signature: Of the C2PA manifest.
    """

    metadata: str
    signature: Signature

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        signature = {"valid": self.signature.valid, "text": self.signature.text}
        return {"metadata": self.metadata or None, "signature": signature, "watermark": None}

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each layer."""
        return (
            f"metadata:  {self.metadata or 'nothing says how it was made, which proves nothing'}",
            f"signature: {self.signature.text}",
            "watermark: not looked for",
        )


def layers_of(path: Path) -> Layers:
    """Read the marks of a PNG, JPEG or WebP file; its pixels are not decoded.

    Raises:
        InputError: If it is no such file.
    """
    content = read_plain(path, _MOST_BYTES, follow=True)
    try:
        with Image.open(path, formats=["PNG", "JPEG", "WEBP"]) as picture:
            packet = picture.info.get("xmp") or picture.info.get("XML:com.adobe.xmp") or b""
            kind = str(Image.MIME[picture.format or ""])
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} is no picture that can be read ({error}). Name a PNG, JPEG or WebP file.") from error
    text = packet if isinstance(packet, str) else packet.decode("utf-8", "replace")
    said = [found and plain(found[1]) for found in (_TERM.search(text), _TOOL.search(text), _LABEL.search(text))]
    words = [said[0], said[1] and f"made with {said[1]}", said[2] and f"AIGC label {said[2]}"]
    return Layers(", ".join(word for word in words if word) if said[0] or said[2] else "", signature_of(content, kind))
