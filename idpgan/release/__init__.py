"""What is given away: artifacts, the folder they are put into, its card, exported samples, and verification.

`write_model` releases what was trained in a loop of your own. The names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.checks import lazy_names

if TYPE_CHECKING:
    from idpgan.release.model import load_model as load_model
    from idpgan.release.model import write_model as write_model

__getattr__ = lazy_names(__name__, {"load_model": "model", "write_model": "model"})
