"""Publishers with a proof: the sensitivity is a constant of the declared image size and pixel range."""
