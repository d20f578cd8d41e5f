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


IMPORTS = [
    "import attnmix; import timm",
    "import timm; import attnmix",
    "import attnmix; from timm.models import create_model",
    "import attnmix.models",
    "import attnmix, importlib.util; importlib.util.find_spec('timm'); importlib.util.find_spec('timm')",
    "import attnmix, transformers",
    "import attnmix.training.loop",
]
# Forked from a process that has imported torch and torchvision, which takes most of the time, and nothing of ours.
FORKS = """
import os, sys, torch, torchvision.models.feature_extraction
assert not {"timm", "attnmix", "transformers"} & set(sys.modules)
for code in sys.argv[1:]:
    if os.fork() == 0:
        exec(code)
        sys.exit()
    if os.wait()[1]:
        sys.exit(code)
"""


def test_our_models_are_in_timms_registry_whichever_is_imported_first():
    asked = "; import sys, timm; n = len(sys.meta_path); assert timm.is_model('pvt_tiny'); "
    asked += "assert timm.list_models('*ca_swin*'); import attnmix.models; assert n == len(sys.meta_path)"
    orders = [imports + asked for imports in IMPORTS]
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", FORKS, *orders], check=True)
