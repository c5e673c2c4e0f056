from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hetfl.data import archive
from hetfl.data.archive import decode, members
from hetfl.errors import HetflError

FILES = {"set/a.bin": b"a" * 3000, "set/deep/b.bin": np.random.default_rng(0).bytes(50_000), "set/c.bin": b""}


KINDS = ("tar", "gz", "bz2", "xz", "zip")


def tar(path: Path, kind: str = "gz", extra: Callable[[tarfile.TarFile], None] = lambda archive: None) -> Path:
    """An archive with ``extra`` after its first file."""
    with tarfile.open(path, "w" if kind == "tar" else f"w:{kind}") as archive:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("set")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for number, (name, content) in enumerate(FILES.items()):
            if number == 1:
                extra(archive)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def pack(path: Path, extra: Callable[[zipfile.ZipFile], None] = lambda archive: None) -> Path:
    """A zip with ``extra`` at its end."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/", b"")
        for name, content in FILES.items():
            archive.writestr(name, content)
        extra(archive)
    return path


def make(path: Path, kind: str) -> Path:
    return pack(path) if kind == "zip" else tar(path, kind)


def one_line(path: Path, match: str, given: tuple[str, ...] | None = None) -> None:
    """Reading fails in one line, gives no more than ``given`` before, and writes nothing."""
    before = sorted(path.parent.iterdir())
    found = []
    with pytest.raises(HetflError, match=match) as caught:
        found.extend(name for name, _ in members(path))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert sorted(path.parent.iterdir()) == before
    assert given is None or tuple(found) == given


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_read_in_order_and_nothing_is_written(tmp_path: Path, kind: str) -> None:
    path = make(tmp_path / "set", kind)
    assert list(members(path)) == list(FILES.items())
    assert [found for found, _ in members(path, lambda found: "deep" in found)] == ["set/deep/b.bin"]
    assert [each.name for each in tmp_path.iterdir()] == ["set"]


def test_leading_dot_is_dropped(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        member = tarfile.TarInfo("./a.bin")
        archive.addfile(member, io.BytesIO())
    assert list(members(tmp_path / "set.tar")) == [("a.bin", b"")]


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../up.bin", "set/../../up.bin", "..\\up.bin", "\\up.bin", "C:\\up.bin", "C:/up", "./../up"],
)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_name_that_leads_out_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    if kind == "tar":
        path = tar(tmp_path / "set", extra=lambda archive: archive.addfile(tarfile.TarInfo(name)))
    else:
        path = pack(tmp_path / "set", lambda archive: archive.writestr(zipfile.ZipInfo(name), b"x"))
    one_line(path, "leads out of the archive; fetch it again", ("set/a.bin",) if kind == "tar" else ())
    with pytest.raises(HetflError, match="leads out"):
        list(members(path, lambda name: False))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo("set/link")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)

    one_line(tar(tmp_path / "set", "tar", add), "'set/link' is a link or a device", ("set/a.bin",))


@pytest.mark.parametrize("kind", [0o120777, 0o020666, 0o060666, 0o010666])
def test_links_and_devices_in_a_zip_are_refused_before_anything_is_given(tmp_path: Path, kind: int) -> None:
    def add(archive: zipfile.ZipFile) -> None:
        member = zipfile.ZipInfo("set/link")
        member.create_system, member.external_attr = 3, kind << 16
        archive.writestr(member, "/etc/passwd")

    one_line(pack(tmp_path / "set", add), "'set/link' is a link or a device", ())


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_archive_is_refused(tmp_path: Path, kind: str) -> None:
    path = make(tmp_path / "set", kind)
    content = path.read_bytes()
    # A plain tar ends with padding; it is whole with the first block of it. Cuts are within and between blocks.
    end = len(content.rstrip(b"\0")) + 512 if kind == "tar" else len(content)
    for kept in [*range(0, end - 1, 512 * 11), *range(512, 5120, 512), *range(end - 900, end - 1, 100), end - 1]:
        path.write_bytes(content[:kept])
        one_line(path, r"is not a whole archive \(.+\); delete it and fetch it again")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zip"])
def test_changed_byte_is_found(tmp_path: Path, kind: str) -> None:
    path = make(tmp_path / "set", kind)
    content = path.read_bytes()
    for place in range(1000, 50_000, 7000):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        one_line(path, "is not a whole archive")


@pytest.mark.parametrize("name", ["set/deep/b.bin", "set/c.bin"])
def test_changed_header_of_a_plain_tar_is_found(tmp_path: Path, name: str) -> None:
    path = tar(tmp_path / "set", "tar")
    path.write_bytes(path.read_bytes().replace(name.encode(), name.upper().encode()))
    names = list(FILES)
    one_line(path, "ends without its end mark", tuple(names[: names.index(name)]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ü.bin".encode(), b"\xff\xff.bin"),  # no UTF-8
        (b"PK\1\2\x14\3\x14\0", b"PK\1\2\x14\3\xff\0"),  # a version to come
    ],
)
def test_zip_that_the_library_cannot_read_is_one_line(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = pack(tmp_path / "set", lambda archive: archive.writestr("ü.bin", b"x"))
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    one_line(path, "is not a whole archive", ())


def test_encrypted_zip_is_one_line(tmp_path: Path) -> None:
    path = pack(tmp_path / "set")
    with zipfile.ZipFile(path) as archive:
        places = [entry.header_offset + 6 for entry in archive.infolist()]
    content = bytearray(path.read_bytes())
    listed = content.find(b"PK\1\2")
    while listed >= 0:
        places.append(listed + 8)
        listed = content.find(b"PK\1\2", listed + 1)
    for place in places:
        content[place] |= 1
    path.write_bytes(content)
    one_line(path, "is not a whole archive .*encrypted", ())


def test_what_is_no_archive_or_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "set.zip").write_text("<html>Not Found</html>")
    one_line(tmp_path / "set.zip", r"is not a whole archive \(file could not be opened successfully\)")
    one_line(tmp_path / "none.tar", "does not exist; fetch it again")
    one_line(tmp_path, "is not a whole archive .*directory")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_member_that_is_too_large_is_refused(tmp_path: Path, kind: str) -> None:
    path = tar(tmp_path / "set.tar.gz") if kind == "tar" else pack(tmp_path / "set.zip")
    with pytest.raises(HetflError, match="'set/deep/b.bin' has 50000 bytes, at most 4000 are read"):
        list(members(path, largest=4000))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_header_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    def add(archive: tarfile.TarFile) -> None:
        head = tarfile.TarInfo("head")
        head.type, head.size = kind, 2**32
        archive.addfile(head)

    one_line(
        tar(tmp_path / "set", "xz", add), f"a header has {2**32} bytes, at most {2**20} are read", ("set/a.bin",)
    )


def test_sparse_member_is_refused(tmp_path: Path) -> None:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo("holes")
        member.type = tarfile.GNUTYPE_SPARSE
        archive.addfile(member)

    one_line(tar(tmp_path / "set", "gz", add), "a member is sparse", ("set/a.bin",))


def test_long_names_are_read(tmp_path: Path) -> None:
    name = f"set/{'deep/' * 60}ü.bin"
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "set.tar", "w", format=form) as archive:
            archive.addfile(tarfile.TarInfo(name))
        assert list(members(tmp_path / "set.tar")) == [(name, b"")]


def test_headers_without_members_count_as_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST", 10_000)
    monkeypatch.setattr(archive, "RATIO", 0)
    with tarfile.open(tmp_path / "set.tar.xz", "w:xz", format=tarfile.PAX_FORMAT) as made:
        for number in range(4):
            member = tarfile.TarInfo(f"{number}.bin")
            member.pax_headers = {"comment": "x" * 4000}
            made.addfile(member)
    with pytest.raises(HetflError, match="unpacks to more than 0 times its size"):
        list(members(tmp_path / "set.tar.xz"))


def test_zip_member_without_a_name_is_refused(tmp_path: Path) -> None:
    path = pack(tmp_path / "set")
    path.write_bytes(path.read_bytes().replace(b"set/c.bin", b"\0et/c.bin"))  # names end at a zero byte
    one_line(path, "a member has no name", ())


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archive_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(archive, "LARGEST", 10_000)
    monkeypatch.setattr(archive, "RATIO", 0)
    path = tar(tmp_path / "set.tar.gz") if kind == "tar" else pack(tmp_path / "set.zip")
    with pytest.raises(HetflError, match="set.(zip|tar.gz): unpacks to more than 0 times its size"):
        list(members(path, largest=10**6))


def encoded(image: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


NOISE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def test_images_are_decoded_as_pillow_does() -> None:
    image = Image.fromarray(NOISE)
    np.testing.assert_array_equal(decode(encoded(image, "PNG"), "it"), NOISE)
    jpeg = encoded(image, "JPEG")
    np.testing.assert_array_equal(decode(jpeg, "it"), np.asarray(Image.open(io.BytesIO(jpeg))))
    grey = np.asarray(image.convert("L"))[..., None]
    np.testing.assert_array_equal(decode(encoded(image, "PNG"), "it", mode="L"), grey)


@pytest.mark.parametrize("resample", [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC])
@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_images_are_stretched_as_pillow_does(resample: Image.Resampling, mode: str, channels: int) -> None:
    image = Image.fromarray(NOISE)
    stretched = decode(encoded(image, "PNG"), "it", (12, 8), mode, resample)
    assert stretched.shape == (12, 8, channels) and stretched.dtype == np.uint8
    expected = np.asarray(image.convert(mode).resize((8, 12), resample)).reshape(12, 8, channels)
    np.testing.assert_array_equal(stretched, expected)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "CMYK"])
def test_every_kind_of_colour_becomes_rgb(mode: str) -> None:
    data = encoded(Image.fromarray(NOISE).convert(mode), "JPEG" if mode == "CMYK" else "PNG")
    pixels = decode(data, "it")
    assert pixels.shape == (20, 30, 3)
    np.testing.assert_array_equal(pixels, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


PHOTO = encoded(Image.fromarray(NOISE), "JPEG")
DRAWING = encoded(Image.fromarray(NOISE), "PNG")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image",
        encoded(Image.fromarray(NOISE), "GIF"),
        PHOTO.replace(b"\xff\xc0", b"\xff\xff"),
        DRAWING.replace(b"IDAT", b"IDAZ"),
        DRAWING[:500] + bytes([DRAWING[500] ^ 0xFF]) + DRAWING[501:],
        *(data[: len(data) * tenths // 10] for data in (PHOTO, DRAWING) for tenths in range(1, 10)),
    ],
)
def test_damaged_image_is_named(data: bytes) -> None:
    with pytest.raises(HetflError) as caught:
        decode(data, "x.tar: a.jpg")
    assert re.fullmatch(r"x\.tar: a\.jpg: is not a readable image \(.+\); fetch its archive again", str(caught.value))


def test_image_that_unfolds_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    with pytest.raises(HetflError, match="it: is not a readable image .*exceeds limit"):
        decode(DRAWING, "it")
