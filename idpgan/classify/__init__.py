"""Methods that train a private classifier, which is given away itself. Imports nothing heavy."""

from idpgan.methods import methods_of

__all__ = ["METHODS"]

METHODS = methods_of("classifier")
