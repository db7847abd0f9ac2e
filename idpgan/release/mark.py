"""The machine-readable mark of pictures: that they are artificial, and what made them.

The term is IPTC's DigitalSourceType, in an XMP packet (ISO 16684-1) of one text chunk, right behind the head of a PNG.
Its text depends on nothing but the term, the version of idpgan and the hash of what drew the pictures, so that a reader
of a release can say byte for byte what it has to be.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from idpgan.files import CONFIG, WEIGHTS

PICTURE = ".png"  # the end of the name of a file that carries the mark
KEY = "mark"  # in manifests
_AFTER_HEAD = 33  # bytes of a PNG's signature and of its head, IHDR, which comes first
_TERMS = "http://cv.iptc.org/newscodes/digitalsourcetype/"
_PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about=""
 xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
 xmlns:xmp="http://ns.adobe.com/xap/1.0/"
 xmlns:dc="http://purl.org/dc/elements/1.1/"
 Iptc4xmpExt:DigitalSourceType="{term}"
 xmp:CreatorTool="idpgan {version}"
 dc:identifier="sha256:{sha256}"/>
</rdf:RDF></x:xmpmeta>
<?xpacket end="r"?>"""


class DigitalSource(StrEnum):
    """What made a picture, in the words of IPTC's NewsCodes "Digital Source Type"."""

    TRAINED = "trainedAlgorithmicMedia"  # drawn by a generator that learned from images
    ENHANCED = "algorithmicallyEnhanced"  # a photo with noise, blurred or compressed
    COMPOSITE = "compositeWithTrainedAlgorithmicMedia"  # a photo drawn again by a trained network
    FORMULA = "algorithmicMedia"  # drawn by formula alone

    @property
    def uri(self) -> str:
        """The term as other programs read it."""
        return _TERMS + self.value


@dataclass(frozen=True)
class Mark:
    """The mark of pictures.

    Attributes:
        source: What made them.
        version: Of idpgan.
        sha256: Of the weights that drew them, or of the config.json of a publication: 64 hexadecimal digits.
    """

    source: DigitalSource
    version: str
    sha256: str

    @property
    def chunk(self) -> bytes:
        """The text chunk of a PNG: keyword, no compression, no language, the packet."""
        packet = _PACKET.format(term=self.source.uri, version=self.version, sha256=self.sha256).encode()
        body = b"iTXtXML:com.adobe.xmp" + bytes(5) + packet
        return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))

    def on(self, png: bytes) -> bytes:
        """Return the PNG with the mark."""
        return png[:_AFTER_HEAD] + self.chunk + png[_AFTER_HEAD:]

    def off(self, png: bytes) -> bytes:
        """Return the PNG without this very mark; as it is, where the mark is not there byte for byte."""
        behind = _AFTER_HEAD + len(self.chunk)
        return png[:_AFTER_HEAD] + png[behind:] if png[_AFTER_HEAD:behind] == self.chunk else png

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"digital_source_type": self.source.uri, "generator": f"idpgan {self.version}", "sha256": self.sha256}


def identified_by(names: Container[str]) -> str:
    """Return which file of a release identifies, by its hash, what made the pictures: the weights, or config.json."""
    return WEIGHTS if WEIGHTS in names else CONFIG
