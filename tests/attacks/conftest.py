"""What the tests of attacks share."""

import pytest

from idpgan.commands import main


@pytest.fixture
def call(capsys):
    """Run ``idpgan attack``; returns (exit code, stdout, stderr)."""

    def command(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["attack", *map(str, arguments)])
        return ended.value.code or 0, *capsys.readouterr()

    return command
