"""Methods that train and release a private classifier. This module imports nothing heavy."""

from idpgan.methods import methods_of

__all__ = ["METHODS"]

METHODS = methods_of("classifier")
