"""All methods that `idpgan train` knows, generators and classifiers: what every command looks a method up by."""

from idpgan import classify, synthesis

REGISTRY = synthesis.REGISTRY.joined(classify.REGISTRY)
