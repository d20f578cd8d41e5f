import pytest

from attnmix.models.image_size import require_multiple


def test_multiples_pass():
    require_multiple((32, 96), (32, 32))
    require_multiple((4, 6), (4, 3))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((50, 32), "image height 50 is not a multiple of 16; 48 would be"),
        ((32, 60), "image width 60 is not a multiple of 16; 64 would be"),
        ((3, 16), "image height 3 is not a multiple of 16; 16 would be"),
        ((0, 16), "image height 0 is not a multiple of 16; 16 would be"),
    ],
)
def test_other_sides_are_refused_with_the_nearest_that_fits(size, message):
    with pytest.raises(ValueError, match=message):
        require_multiple(size, (16, 16))
