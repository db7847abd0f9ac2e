"""Methods that train or evolve something that samples. Imports nothing heavy."""

from idpgan.synthesis.registry import METHODS, build_config, load_method, refuse_unsound

__all__ = ["METHODS", "build_config", "load_method", "refuse_unsound"]
