import importlib.util
from pathlib import Path

import pytest

import attnmix

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("plain_loop", {}), ("compiled_bfloat16", {"backend": "aot_eager"})]
)
def test_every_method_trains_a_step(name, options, capsys):
    example = load(name)
    example.main(**options)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(getattr(example, "NAMES", attnmix.METHODS))
    assert all(0 < float(line.split()[2]) < 20 for line in lines)
