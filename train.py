"""The same as ``idpgan train``, for those who look for it here."""

import sys

from idpgan.commands import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
