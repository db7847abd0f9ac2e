"""The machine-readable mark of pictures: that they are artificial, and what made them.

The term is IPTC's DigitalSourceType, in an XMP packet (ISO 16684-1) of one text chunk, right behind the head of a PNG;
where a trained network drew, the implicit label of GB 45438-2025 stands beside it (TC260's property AIGC, as other
programs write it: the standard itself was not read). The text
depends on nothing but the term, the version of idpgan and the hash of what drew the pictures, so that a reader of a
release can say byte for byte what it has to be. A manifest of `idpgan.release.signature` may lie before it.

PNG files that hold pixels and nothing else, written into releases and read from releases that others made.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Collection, Container
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from idpgan.files import CONFIG, WEIGHTS
from idpgan.lazy import torch
from idpgan.release.signature import AFTER_HEAD, TERMS, unsigned

if TYPE_CHECKING:
    from torch import Tensor

    from idpgan.models.config import ModelConfig
    from idpgan.release.signature import Signer

PICTURE = ".png"  # the end of the name of a file that carries the mark
KEY = "mark"  # in manifests
_PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about=""
 xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
 xmlns:xmp="http://ns.adobe.com/xap/1.0/"
 xmlns:dc="http://purl.org/dc/elements/1.1/"
 Iptc4xmpExt:DigitalSourceType="{term}"
 xmp:CreatorTool="idpgan {version}"
 dc:identifier="sha256:{sha256}"{label}
</rdf:RDF></x:xmpmeta>
<?xpacket end="r"?>"""
# Label 1: generated or synthesized. The producer is known to the provider alone; here it is the program.
_LABEL = """
 xmlns:TC260="http://www.tc260.org.cn/ns/AIGC/1.0/">
<TC260:AIGC>{{"Label":"1","ContentProducer":"idpgan {version}","ProduceID":"sha256:{sha256}","ReservedCode1":"",\
"ContentPropagator":"","PropagateID":"","ReservedCode2":""}}</TC260:AIGC>
</rdf:Description>"""


class DigitalSource(StrEnum):
    """What made a picture, in the words of IPTC's NewsCodes "Digital Source Type"."""

    TRAINED = "trainedAlgorithmicMedia"  # drawn by a generator that learned from images
    ENHANCED = "algorithmicallyEnhanced"  # a photo with noise, blurred, compressed, or moved onto a law
    COMPOSITE = "compositeWithTrainedAlgorithmicMedia"  # a photo drawn again by a trained network, or photos beside its
    FORMULA = "algorithmicMedia"  # drawn by formula alone

    @property
    def uri(self) -> str:
        """The term as other programs read it."""
        return TERMS + self.value


def of_public(model: ModelConfig, formula: bool) -> DigitalSource | None:
    """Return what made a public picture among those that a generator draws; None = nothing did, it is as it was.

    Args:
        model: The generator's config.
        formula: Whether the public pictures are drawn by a program, and no photos.
    """
    if model.drawn.agreed:  # as they were
        return DigitalSource.FORMULA if formula else None
    return DigitalSource.TRAINED if formula or not model.shows_public else DigitalSource.ENHANCED


def of_pictures(model: ModelConfig, formula: bool, purpose: str = "looking") -> DigitalSource | None:
    """Return what made the pictures that a generator draws for a purpose, together; see `of_public`."""
    law = model.drawn.agreed or not model.shows_public or (model.moved and purpose != "looking")
    return together([of_public(model, formula), *([DigitalSource.TRAINED] if law else [])])


def together(sources: Collection[DigitalSource | None]) -> DigitalSource | None:
    """Return what made several pictures: that of each, or a composite of them."""
    first, *others = dict.fromkeys(sources)
    return DigitalSource.COMPOSITE if others else first


@dataclass(frozen=True)
class Mark:
    """The mark of pictures.

    Attributes:
        source: What made them.
        version: Of idpgan.
        sha256: Of the weights that drew them, or of the config.json of a publication: 64 hexadecimal digits.
        signer: What signs a picture that gets the mark.
    """

    source: DigitalSource
    version: str
    sha256: str
    signer: Signer | None = None

    @property
    def chunk(self) -> bytes:
        """The text chunk of a PNG: keyword, no compression, no language, the packet."""
        return self._chunk(labeled=self.source in (DigitalSource.TRAINED, DigitalSource.COMPOSITE))

    def _chunk(self, *, labeled: bool) -> bytes:
        facts = {"version": self.version, "sha256": self.sha256}
        label = _LABEL.format(**facts) if labeled else "/>"
        packet = _PACKET.format(term=self.source.uri, label=label, **facts).encode()
        body = b"iTXtXML:com.adobe.xmp" + bytes(5) + packet
        return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))

    def on(self, png: bytes) -> bytes:
        """Return the PNG with the mark, and signed where there is a signer."""
        marked = png[:AFTER_HEAD] + self.chunk + png[AFTER_HEAD:]
        return marked if self.signer is None else self.signer.on(marked, self.source, self.version)

    def off(self, png: bytes) -> bytes:
        """Return the PNG without this very mark; without its manifest alone, where it is not there byte for byte.

        Versions before the label left that out; their marks are this one too.
        """
        png = unsigned(png)
        for chunk in (self.chunk, self._chunk(labeled=False)):
            if png[AFTER_HEAD : AFTER_HEAD + len(chunk)] == chunk:
                return png[:AFTER_HEAD] + png[AFTER_HEAD + len(chunk) :]
        return png

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"digital_source_type": self.source.uri, "generator": f"idpgan {self.version}", "sha256": self.sha256}


def identified_by(names: Container[str]) -> str:
    """Return which file of a release identifies, by its hash, what made the pictures: the weights, or config.json."""
    return WEIGHTS if WEIGHTS in names else CONFIG


SAMPLES = "samples.png"  # the picture of a release: images that it draws or holds
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MODES = {1: ("L", 0), 3: ("RGB", 2)}  # channels -> Pillow's word, PNG's color type


def most_png_bytes(shape: tuple[int, int, int]) -> int:
    """Return the most bytes that the file of an image (C, H, W) can have, however badly it is packed."""
    channels, height, width = shape
    return 2 * height * (1 + channels * width) + (1 << 16)


def decode_png(content: bytes, shape: tuple[int, int, int]) -> Tensor:
    """Return `png_pixels` as a tensor."""
    return torch.from_numpy(png_pixels(content, shape))


def png_pixels(content: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the pixels of an 8-bit PNG that somebody else made, uint8 (C, H, W).

    Anything that could carry other content is refused: chunks other than head, pixels and end, bytes behind the end or
    behind the packed pixels, a wrong checksum, an interlaced or indexed picture. Nothing larger than ``shape`` is
    unpacked.

    Raises:
        ValueError: Completes a sentence that begins with the file's name.
    """
    mode, color = _MODES[shape[0]]
    packed = _packed_pixels(content, struct.pack(">IIBBBBB", shape[2], shape[1], 8, color, 0, 0, 0), shape)
    if packed != shape[1] * (1 + shape[0] * shape[2]):
        raise ValueError("is damaged, or holds more than pixels")
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            if picture.mode != mode:
                raise ValueError("is damaged, or holds more than pixels")
            pixels = np.array(picture)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"is damaged ({error})") from error
    return pixels.reshape(shape[1], shape[2], shape[0]).transpose(2, 0, 1)


def _packed_pixels(content: bytes, head: bytes, shape: tuple[int, int, int]) -> int:
    """Return the number of bytes that the pixels unpack to; if they exceed the shape, one more than the shape has."""
    kinds, data, offset = [], [], 8
    while offset + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, offset)
        body = content[offset + 8 : offset + 8 + length]
        kinds.append(kind)
        data += [body] if kind == b"IDAT" else []
        if content[offset + 8 + length : offset + 12 + length] != struct.pack(">I", zlib.crc32(kind + body)):
            raise ValueError("is damaged, or holds more than pixels")
        if (kind == b"IHDR" and len(kinds) > 1) or (kind == b"IEND" and length):
            break
        offset += 12 + length
    whole = offset == len(content) and set(kinds) == {b"IHDR", b"IDAT", b"IEND"} and kinds[-1:] == [b"IEND"]
    if not whole or kinds[0] != b"IHDR" or kinds.count(b"IEND") > 1 or not content.startswith(_SIGNATURE):
        raise ValueError("is damaged, or holds more than pixels")
    if content[16 : 16 + len(head)] != head or struct.unpack_from(">I", content, 8)[0] != len(head):
        raise ValueError(f"is not an 8-bit picture of {shape[1]} x {shape[2]} pixels with {shape[0]} channels")
    unpacker = zlib.decompressobj()
    try:
        rows = unpacker.decompress(b"".join(data), shape[1] * (1 + shape[0] * shape[2]) + 1)
    except zlib.error as error:
        raise ValueError(f"is damaged ({error})") from error
    if not unpacker.eof or unpacker.unused_data or unpacker.unconsumed_tail:
        raise ValueError("is damaged, or holds more than pixels")
    return len(rows)
