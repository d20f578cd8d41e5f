import subprocess
import sys

import pytest

import attnmix


def test_every_public_name_is_there():
    for name in attnmix.__all__:
        assert getattr(attnmix, name) is not None
    assert set(attnmix.__all__) <= set(dir(attnmix))
    with pytest.raises(AttributeError, match="no attribute 'MixTusk'"):
        _ = attnmix.MixTusk


def test_help_does_not_wait_for_torch():
    code = (
        "import sys; from attnmix.cli import main; "
        "assert main(['--help']) == main(['compare', '--help']) == main(['show', '--help']) == 0; "
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
