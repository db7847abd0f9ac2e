"""One normal distribution a class, from one noisy release of moments: what every generator has to beat."""
