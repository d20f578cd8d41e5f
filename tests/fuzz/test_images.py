import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageSequence, features

from attnmix.data.annotation_index import original_size
from attnmix.data.folder import open_folder
from attnmix.data.transforms import create_transforms
from tests.fuzz.trying import attempt, fuzz, mangled

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
PICTURE = Image.fromarray(PIXELS)


def saved(picture, kind, **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def _exif():
    exif = Image.Exif()
    exif[0x0112] = 6  # turned
    exif[0x010E] = "x" * 200
    return exif


FILES = {
    "png": saved(PICTURE, "PNG"),
    "png grey": saved(PICTURE.convert("L"), "PNG"),
    "png of 16 bits": saved(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257), "PNG"),
    "png of two colours": saved(PICTURE.convert("1"), "PNG"),
    "palette with transparency": saved(PICTURE.quantize(8), "PNG", transparency=3),
    "palette of alphas": saved(PICTURE.quantize(8), "PNG", transparency=bytes(range(8))),
    "alpha": saved(PICTURE.convert("RGBA"), "PNG"),
    "grey alpha": saved(PICTURE.convert("LA"), "PNG"),
    "jpeg": saved(PICTURE, "JPEG", exif=_exif()),
    "progressive": saved(PICTURE, "JPEG", progressive=True),
    "jpeg cmyk": saved(PICTURE.convert("CMYK"), "JPEG"),
    "gif": saved(PICTURE, "GIF", save_all=True, append_images=[PICTURE.rotate(90), PICTURE], transparency=0),
    "apng": saved(PICTURE, "PNG", save_all=True, append_images=[PICTURE.rotate(180)]),
    "tiff": saved(PICTURE, "TIFF", compression="tiff_lzw"),
    "tiff of floats": saved(PICTURE.convert("F"), "TIFF"),
    "tiff ycbcr": saved(PICTURE.convert("YCbCr"), "TIFF"),
    "bmp": saved(PICTURE, "BMP"),
    "ppm": saved(PICTURE, "PPM"),
    "ico": saved(PICTURE.resize((16, 16)), "ICO"),
    "tga": saved(PICTURE, "TGA"),
}
if features.check("webp"):
    FILES["webp"] = saved(PICTURE, "WEBP")
    FILES["moving webp"] = saved(PICTURE, "WEBP", save_all=True, append_images=[PICTURE.rotate(180)])


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width, height, *, data=b"", colour=2):
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


UNREADABLE = {
    "nothing": b"",
    "one byte": b"\x89",
    "words": b"<html>not found</html>",
    "a bomb": png_of(60_000, 60_000),
    "a larger one": png_of(2**31 - 1, 2**31 - 1),
    "no pixels": png_of(0, 0),
    "one by one": saved(PICTURE.crop((0, 0, 1, 1)), "PNG"),
    "one by n": saved(PICTURE.crop((0, 0, 1, 9)), "PNG"),
    "n by one": saved(PICTURE.crop((0, 0, 12, 1)), "JPEG"),
    "fewer pixels than said": png_of(50, 50, data=b"\0" * 100),
    "a text bomb": b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 2, 0, 0, 0))
    + chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(90_000_000)))
    + png_of(9, 9)[33:],
}


@pytest.fixture
def folder(tmp_path):
    """Eight whole pictures, and one of another kind: `set` puts it there and opens the folder."""
    root = tmp_path / "images"
    for number in range(8):
        (root / "class").mkdir(parents=True, exist_ok=True)
        (root / "class" / f"{number}.png").write_bytes(FILES["png"])

    def put(data, *, training=False):
        (root / "class" / "x.png").write_bytes(data)
        transforms = create_transforms((3, 8, 8), mean=(0.5,) * 3, std=(0.5,) * 3, whole_image=False)
        images = open_folder(root, options={}, transform=transforms[0 if training else 1], tolerated=1)
        return images, next(index for index in range(len(images)) if images.name_of(index).endswith("x.png"))

    return put


def served(folder, data, training=False):
    """Whether the picture is served; it is counted as unreadable if not, and another one stands in."""
    images, index = folder(data, training=training)
    found = images.read(index)
    stand_in, _ = images[index]
    assert stand_in.shape == (3, 8, 8)
    assert stand_in.isfinite().all()
    if found is None:
        assert len(images.unreadable) == 1
        assert images.unreadable[0].endswith("x.png")
        return False
    assert found[0].shape == (3, 8, 8)
    assert images.unreadable == []
    return True


@pytest.mark.parametrize("kind", FILES)
def test_whole_files_of_every_kind_are_served(folder, kind):
    assert served(folder, FILES[kind])
    assert served(folder, FILES[kind], training=True)


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_picture_is_counted(folder, kind):
    assert not attempt("images: no pictures", lambda: served(folder, UNREADABLE[kind]), errors=())[0]


def test_postscript_is_not_run(folder, happened):
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(secret) run\n"
    try:
        assert not served(folder, program)
        assert happened == []
    finally:
        happened.clear()


def test_ribbons_are_counted(folder):
    assert not served(folder, saved(PICTURE.resize((9000, 2)), "PNG"))


def test_damaged_pictures_are_served_or_counted(folder):
    seen = set()

    @fuzz(300)
    @given(
        data=st.sampled_from(list(FILES.values())).flatmap(lambda whole: st.one_of(mangled(whole), _cut(whole))),
        training=st.booleans(),
    )
    def check(data, training):
        seen.add(attempt("images: damaged", lambda: served(folder, data, training), errors=())[0])

    check()
    assert seen == {True, False}


def _cut(whole):
    return st.integers(0, len(whole)).map(lambda length: whole[:length])


@fuzz(150)
@given(data=st.sampled_from([*FILES.values(), *UNREADABLE.values()]).flatmap(mangled))
def test_the_size_of_a_damaged_original(tmp_path, data):
    path = tmp_path / "x.png"
    path.write_bytes(data)
    height, width = attempt("images: sizes", lambda: original_size(str(path), (9, 12)), errors=())[0]
    assert min(height, width) >= 0


def test_moving_pictures_show_their_first(folder):
    with Image.open(io.BytesIO(FILES["gif"])) as gif:
        assert len(list(ImageSequence.Iterator(gif))) > 1
    images, index = folder(FILES["apng"])
    still, place = folder(FILES["png"])
    assert (images[index][0] == still[place][0]).all()
