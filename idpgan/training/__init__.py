"""The adversarial loop, its state and its records; this room knows no method's name."""
