"""Methods that train or evolve a generator. This module imports nothing heavy."""

from idpgan.methods import methods_of

__all__ = ["METHODS"]

METHODS = methods_of("generator")
