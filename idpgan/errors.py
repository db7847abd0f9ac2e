"""The error classes that all rooms share. Imports nothing: the command line loads it before anything else.

The user can mend an `InputError`: the command line prints its message as one line and ends with exit code 2. Any other
error is a defect of the program.
"""


class InputError(ValueError):
    """Bad input by the user: the message names what is wrong, its value, the limit and the way out."""


class ConfigError(InputError):
    """A config file, key or value that cannot be used."""


class DataError(InputError):
    """A data file or folder that cannot be used."""
