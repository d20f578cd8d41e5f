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


@pytest.mark.parametrize(
    "imports",
    [
        "import attnmix; import timm",
        "import timm; import attnmix",
        "import attnmix; from timm.models import create_model",
        "import attnmix.models",
        "import attnmix, importlib.util; importlib.util.find_spec('timm'); importlib.util.find_spec('timm')",
        "import attnmix, transformers",
        "import attnmix.training.loop",
    ],
)
def test_our_models_are_in_timms_registry_whichever_is_imported_first(imports):
    code = f"{imports}; import sys, timm; n = len(sys.meta_path); assert timm.is_model('pvt_tiny'); "
    code += "assert timm.list_models('*ca_swin*'); import attnmix.models; assert n == len(sys.meta_path)"
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)
