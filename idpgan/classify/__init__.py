"""Methods that train a private classifier, which is given away itself. Imports nothing heavy."""

from idpgan.classify.registry import METHODS, REGISTRY

__all__ = ["METHODS", "REGISTRY"]
