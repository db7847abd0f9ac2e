"""Mechanisms and theorems that surveys list beside those of which the methods are built: no method uses them."""
