"""Which version of the package this is, and of which code: what cards, marks and ``idpgan --version`` say."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from pathlib import Path


@functools.cache
def made_with() -> str:
    """Return the version of the package and a hash of its code, such as "0.4.0+3fa94b2c91aa".

    Sentences of reports and cards change between versions. Those of a release that names this very code are compared
    word for word, those of any other by their fields (see `idpgan.release.verify`).
    """
    version = importlib.metadata.version("idpgan")
    return f"{version}{'.' if '+' in version else '+'}{code_digest()[:12]}"


@functools.cache  # of the files as this process loaded them
def code_digest() -> str:
    """Return the SHA-256 (hex) of the package's own source files and of the card's template, names and contents."""
    root = Path(__file__).resolve().parent
    sha = hashlib.sha256()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.md")]):
        content = path.read_bytes()
        sha.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return sha.hexdigest()
