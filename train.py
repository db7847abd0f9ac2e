"""The same as ``idpgan train``, for those who look for it here."""

import sys

from idpgan.__main__ import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]], "train.py")
