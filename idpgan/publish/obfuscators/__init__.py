"""Obfuscators: publishers that change images for privacy as people do, and prove nothing about it; some are fitted."""
