"""Methods that train or evolve something that samples. Imports nothing heavy."""

from idpgan.synthesis.registry import METHODS, REGISTRY, audit_entry, build_config, load_method, refuse_unsound

__all__ = ["METHODS", "REGISTRY", "audit_entry", "build_config", "load_method", "refuse_unsound"]
