"""Collaborative training by selective sharing of gradients, with or without the noise of its paper."""
