from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hetfl.data.archive import decode, members
from hetfl.errors import HetflError

FILES = {"set/a.bin": b"a" * 3000, "set/deep/b.bin": np.random.default_rng(0).bytes(50_000), "set/c.bin": b""}


def tar(path: Path, mode: str = "w:gz", extra: Callable[[tarfile.TarFile], None] = lambda archive: None) -> Path:
    with tarfile.open(path, mode) as archive:
        folder = tarfile.TarInfo("set")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        extra(archive)
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def pack(path: Path, extra: Callable[[zipfile.ZipFile], None] = lambda archive: None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/", b"")
        for name, content in FILES.items():
            archive.writestr(name, content)
        extra(archive)
    return path


def one_line(path: Path, match: str) -> None:
    before = sorted(path.parent.iterdir())
    with pytest.raises(HetflError, match=match) as caught:
        list(members(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize("name", ["set.tar", "set.tar.gz", "set.tar.bz2", "set.zip"])
def test_files_are_read_in_order_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    modes = {"set.tar": "w", "set.tar.gz": "w:gz", "set.tar.bz2": "w:bz2"}
    path = pack(tmp_path / name) if name == "set.zip" else tar(tmp_path / name, modes[name])
    assert list(members(path)) == list(FILES.items())
    assert [found for found, _ in members(path, lambda found: "deep" in found)] == ["set/deep/b.bin"]
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_leading_dot_is_dropped(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        member = tarfile.TarInfo("./a.bin")
        archive.addfile(member, io.BytesIO())
    assert list(members(tmp_path / "set.tar")) == [("a.bin", b"")]


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../up.bin", "set/../../up.bin", "..\\up.bin", "C:\\up.bin", "C:/up"]
)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_name_that_leads_out_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    if kind == "tar":
        path = tar(tmp_path / "set.tar.gz", extra=lambda archive: archive.addfile(tarfile.TarInfo(name)))
    else:
        path = pack(tmp_path / "set.zip", lambda archive: archive.writestr(zipfile.ZipInfo(name), b"x"))
    one_line(path, "leads out of the archive")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    def add(archive: tarfile.TarFile) -> None:
        member = tarfile.TarInfo("set/link")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)

    one_line(tar(tmp_path / "set.tar", "w", add), "'set/link' is a link or a device")


def test_link_in_a_zip_is_refused_before_anything_is_given(tmp_path: Path) -> None:
    def add(archive: zipfile.ZipFile) -> None:
        member = zipfile.ZipInfo("set/link")
        member.create_system, member.external_attr = 3, 0o120777 << 16
        archive.writestr(member, "/etc/passwd")

    path = pack(tmp_path / "set.zip", add)
    one_line(path, "'set/link' is a link or a device")
    with pytest.raises(HetflError):
        next(members(path))


@pytest.mark.parametrize("kept", [0, 1, 20, 700, 20_000, -1000])
@pytest.mark.parametrize("kind", ["tar", "gz", "zip"])
def test_truncated_archive_is_refused(tmp_path: Path, kind: str, kept: int) -> None:
    path = pack(tmp_path / "set") if kind == "zip" else tar(tmp_path / "set", "w" if kind == "tar" else "w:gz")
    content = path.read_bytes()
    if kind == "tar" and kept < 0:
        # The end of a plain tar is padding that may be missing; cut into the last file that has content instead.
        content = content[: content.index(FILES["set/deep/b.bin"]) + 50_000]
    path.write_bytes(content[:kept])
    one_line(path, "is not a whole archive")


@pytest.mark.parametrize("kind", ["gz", "zip"])
def test_changed_byte_is_found(tmp_path: Path, kind: str) -> None:
    path = pack(tmp_path / "set") if kind == "zip" else tar(tmp_path / "set")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    one_line(path, "is not a whole archive")


def test_what_is_no_archive_or_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "set.zip").write_text("<html>Not Found</html>")
    one_line(tmp_path / "set.zip", "is not a whole archive")
    one_line(tmp_path / "none.tar", "is not a whole archive")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_member_that_is_too_large_is_refused(tmp_path: Path, kind: str) -> None:
    path = tar(tmp_path / "set.tar.gz") if kind == "tar" else pack(tmp_path / "set.zip")
    with pytest.raises(HetflError, match="'set/deep/b.bin' has 50000 bytes, at most 4000 are read"):
        list(members(path, largest=4000))


def encoded(image: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


NOISE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def test_images_are_decoded_and_stretched_as_pillow_does() -> None:
    image = Image.fromarray(NOISE)
    np.testing.assert_array_equal(decode(encoded(image, "PNG"), "it"), NOISE)
    stretched = np.asarray(image.resize((8, 12), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(decode(encoded(image, "PNG"), "it", (12, 8)), stretched)
    grey = np.asarray(image.convert("L"))[..., None]
    np.testing.assert_array_equal(decode(encoded(image, "PNG"), "it", mode="L"), grey)
    assert decode(encoded(image, "JPEG"), "it").shape == (20, 30, 3)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "CMYK"])
def test_every_kind_of_colour_becomes_rgb(mode: str) -> None:
    form = "JPEG" if mode == "CMYK" else "PNG"
    assert decode(encoded(Image.fromarray(NOISE).convert(mode), form), "it").shape == (20, 30, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image",
        encoded(Image.fromarray(NOISE), "GIF"),
        encoded(Image.fromarray(NOISE), "JPEG")[:400],
        encoded(Image.fromarray(NOISE), "PNG")[:400],
        encoded(Image.fromarray(NOISE), "PNG").replace(b"IDAT", b"IDAZ"),
    ],
)
def test_damaged_image_is_named(data: bytes) -> None:
    with pytest.raises(HetflError, match=r"x\.tar: a\.jpg: is not a readable image") as caught:
        decode(data, "x.tar: a.jpg")
    assert "\n" not in str(caught.value)
