import pytest

from attnmix.commands import collect
from attnmix.evaluation import label_content


@pytest.fixture(scope="module", autouse=True)
def _quick_measures():
    """How finely costs and labels are measured is nothing these tests ask about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "STEP_ROUNDS", 5)
        patch.setattr(label_content, "DRAWS", 20)
        yield
