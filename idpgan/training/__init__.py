"""The adversarial loop, its state and its records; nothing here depends on a particular method."""
