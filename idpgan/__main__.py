"""``python -m idpgan`` and the command ``idpgan``."""

from idpgan.commands import main

if __name__ == "__main__":
    main()
