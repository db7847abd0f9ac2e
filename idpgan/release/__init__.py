"""What is given away: artifacts, the folder they are put into, its card, exported samples, and verification."""
