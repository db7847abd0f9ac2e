"""Methods that train or evolve something that samples. Imports nothing heavy."""

from idpgan.methods import methods_of

__all__ = ["METHODS"]

METHODS = methods_of("gan")
