from __future__ import annotations

import gzip
import io
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from hetfl.data import npz, readers
from hetfl.data.archive import decode, members
from hetfl.data.readers import arrays, held_out, idx, jpeg_streams, matlab, pictures, take
from hetfl.data.store import Subset
from hetfl.draws import Draws
from hetfl.errors import HetflError


def idx_file(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(head + array.tobytes(), mtime=0)


def jpeg(size: tuple[int, int] = (6, 4), seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def one_line(match: str, read: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(HetflError, match=match) as caught:
        read(*arguments)
    assert "\n" not in str(caught.value)


def truncated(content: bytes) -> list[bytes]:
    return [content[: len(content) * twentieths // 20] for twentieths in range(20)] + [content[:-1]]


def test_arrays_of_an_npz_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(300), b=np.arange(2))
    b, a = arrays(path, "b", "a")
    assert a.tolist() == list(range(300)) and b.tolist() == [0, 1]
    one_line("a.npz: is not in its published format .*c.*; fetch it again", arrays, path, "c")
    content = path.read_bytes()
    unknown = re.sub(rb"(PK\x01\x02.\x03).\0", lambda kept: kept[1] + b"\xff\0", content, flags=re.DOTALL)
    assert unknown != content
    for damaged in (
        b"text",
        unknown,
        content[:150] + bytes([content[150] ^ 0xFF]) + content[151:],
        *truncated(content),
    ):
        path.write_bytes(damaged)
        one_line("a.npz: is not in its published format", arrays, path, "a", "b")
    one_line("b.npz: does not exist", arrays, tmp_path / "b.npz", "a")


class Harmful:
    """Runs code when it is unpickled."""

    ran = False

    def __reduce__(self) -> tuple[Callable[..., None], tuple[type, str, bool]]:
        return setattr, (Harmful, "ran", True)


def test_pickle_in_an_npz_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.array([Harmful()], dtype=object))
    one_line("a.npz: is not in its published format .*holds objects", arrays, path, "a")
    assert not Harmful.ran
    # Also where it is no array but a bare pickle.
    path.write_bytes(pickle.dumps(Harmful()))
    one_line("a.npz: is not in its published format .*not a zip file", arrays, path, "a")
    assert not Harmful.ran


def npy(shape: str, body: bytes = b"", kind: str = "|u1") -> bytes:
    """A file of numpy with any header."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}"
    return b"\x93NUMPY\x01\0" + len(head).to_bytes(2, "little") + head.encode() + body


@pytest.mark.parametrize("shape", ["(10**15,)", "(1000000000000,)", "(-1, -4)", "(0, 99999999999999999999)", "(5,)"])
def test_an_npz_file_whose_header_claims_more_than_there_is_needs_no_memory(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", npy(shape, b"1234"))
    one_line("a.npz: is not in its published format", arrays, path, "a")


def test_a_list_of_contents_that_claims_more_than_there_is_needs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(3))
    content = bytearray(path.read_bytes())
    listed = content.index(b"PK\1\2")
    content[listed + 20 : listed + 24] = (2**31).to_bytes(4, "little")  # the size within the file
    path.write_bytes(content)
    one_line("a.npz: .*is shorter than its list of contents says", arrays, path, "a")
    path.rename(tmp_path / "a.zip")
    with pytest.raises(HetflError, match="is shorter than its list"):
        list(members(tmp_path / "a.zip"))


def test_files_that_unpack_to_much_more_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "LARGEST", 10**6)
    monkeypatch.setattr(readers, "LARGEST", 10**6)
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(10**6, np.uint8))
    one_line(r"a.npz: .*holds 1000128 bytes, at most 1000000 are read", arrays, tmp_path / "a.npz", "a")
    (tmp_path / "a.gz").write_bytes(idx_file(np.zeros((10**6,), np.uint8)))
    one_line("a.gz: .*holds more than 1000000 bytes", idx, tmp_path / "a.gz")
    savemat(tmp_path / "a.mat", {"X": np.zeros(10**6 + 1, np.uint8)}, do_compression=True)
    one_line("a.mat: .*holds 1000001 numbers", matlab, tmp_path / "a.mat", "X")


IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
WHOLE = gzip.decompress(idx_file(IMAGES))


@pytest.mark.parametrize("array", [IMAGES, np.arange(7, dtype=np.uint8)])
def test_idx(tmp_path: Path, array: np.ndarray) -> None:
    (tmp_path / "a.gz").write_bytes(idx_file(array))
    np.testing.assert_array_equal(idx(tmp_path / "a.gz"), array)


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (gzip.compress(b"\0\0\x0d" + WHOLE[3:], mtime=0), "does not start as"),
        (gzip.compress(b"\x08\0" + WHOLE[2:], mtime=0), "does not start as"),
        (gzip.compress(b"", mtime=0), "does not start as"),
        (gzip.compress(WHOLE[:3], mtime=0), "index out of range"),
        (gzip.compress(WHOLE[:9], mtime=0), "buffer"),
        (gzip.compress(WHOLE[:-1], mtime=0), r"holds 59 bytes, its header says \[5, 4, 3\]"),
        (gzip.compress(WHOLE + b"x", mtime=0), "holds 61 bytes"),
        (gzip.compress(WHOLE[:4] + b"\xff" * 8 + WHOLE[12:], mtime=0), r"its header says \[-1, -1, 3\]"),
        (WHOLE, "Not a gzipped file"),
        (idx_file(IMAGES)[:-8] + bytes(8), "CRC check failed"),
        (idx_file(IMAGES) + b"x", "Not a gzipped file"),
    ],
)
def test_damaged_idx_file_is_one_line(tmp_path: Path, damaged: bytes, reason: str) -> None:
    (tmp_path / "a.gz").write_bytes(damaged)
    one_line(f"a.gz: is not in its published format .*{reason}.*; fetch it again", idx, tmp_path / "a.gz")


def test_truncated_idx_file_is_one_line(tmp_path: Path) -> None:
    for damaged in truncated(idx_file(IMAGES)):
        (tmp_path / "a.gz").write_bytes(damaged)
        one_line("a.gz: is not in its published format", idx, tmp_path / "a.gz")


@pytest.mark.parametrize("compressed", [False, True])
def test_matlab(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "a.mat"
    images = np.random.default_rng(0).integers(0, 256, (2, 2, 3, 4), dtype=np.uint8)
    savemat(path, {"X": images, "y": np.arange(4)}, do_compression=compressed)
    x, y = matlab(path, "X", "y")
    np.testing.assert_array_equal(x, images)
    assert y.reshape(-1).tolist() == [0, 1, 2, 3]
    one_line(r"a.mat: is not in its published format \('z'\); fetch it again", matlab, path, "y", "z")
    content = path.read_bytes()
    later = content.replace(b"\0\1IM", b"\0\2IM")  # MATLAB 7.3, which is HDF5
    assert later != content
    for damaged in (b"text", later, *truncated(content)):
        path.write_bytes(damaged)
        one_line("a.mat: is not in its published format", matlab, path, "X", "y")
    one_line("b.mat: does not exist", matlab, tmp_path / "b.mat", "X")


def back_to_back(*streams: bytes) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(streams), np.uint8), np.cumsum([0, *map(len, streams)])


def test_jpeg_streams() -> None:
    streams = [jpeg(seed=seed) for seed in range(3)]
    images = jpeg_streams(Path("x.npz"), *back_to_back(*streams))
    assert images.dtype == np.uint8
    for image, data in zip(images, streams, strict=True):
        np.testing.assert_array_equal(image, np.asarray(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize(
    ("stream", "offsets", "match"),
    [
        (*back_to_back(jpeg(), b"no image", jpeg()), "x.npz: image 1: is not a readable image"),
        (
            back_to_back(jpeg(), jpeg())[0][:-200],
            back_to_back(jpeg(), jpeg())[1],
            "x.npz: image 1: is not a readable",
        ),
        (*back_to_back(jpeg(), jpeg((4, 6))), "x.npz: is not in its published format .*shape"),
        (back_to_back(jpeg())[0], np.array([0, 0]), "x.npz: image 0: is not a readable image"),
        (back_to_back(jpeg())[0], np.array([0]), r"x.npz: is not in its published format \(holds no image\)"),
        (back_to_back(jpeg())[0], np.array([0.0, 99.0]), "x.npz: is not in its published format .*integer"),
    ],
)
def test_damaged_jpeg_streams_are_one_line(stream: np.ndarray, offsets: np.ndarray, match: str) -> None:
    one_line(match, jpeg_streams, Path("x.npz"), stream, offsets)


def is_jpeg(name: str) -> bool:
    return name.endswith(".jpg")


def test_pictures_are_sorted_and_stretched(tmp_path: Path) -> None:
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("b.jpg", "a.jpg", "list.txt"):
            archive.writestr(name, jpeg(seed=ord(name[0])))
    names, images = pictures(path, is_jpeg, (8, 5))
    assert names == ["a.jpg", "b.jpg"]
    assert images.shape == (2, 8, 5, 3) and images.dtype == np.uint8
    for name, image in zip(names, images, strict=True):
        np.testing.assert_array_equal(image, decode(jpeg(seed=ord(name[0])), name, (8, 5)))
    assert pictures(path, lambda name: name == "a.jpg", (8, 5), "L")[1].shape == (1, 8, 5, 1)
    one_line("set.zip: holds none of the images that it should; fetch", pictures, path, lambda name: False, (8, 5))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("c.jpg", jpeg()[:300])
    one_line("set.zip: c.jpg: is not a readable image", pictures, path, is_jpeg, (8, 5))


def test_taking_keeps_everything_together() -> None:
    subset = Subset(np.arange(8, dtype=np.uint8).reshape(4, 2, 1, 1), np.arange(4), {"domain": np.arange(4) + 10})
    part = take(subset, np.array([3, 1]))
    assert part.images[:, 0, 0, 0].tolist() == [6, 2]
    assert part.labels.tolist() == [3, 1]
    assert part.attributes["domain"].tolist() == [13, 11]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.floats(0, 1), st.integers(0, 99))
def test_the_same_share_of_every_group_is_held_out(sizes: list[int], share: float, seed: int) -> None:
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    kept, out = held_out(groups, share, Draws(seed), "test")
    assert sorted([*kept, *out]) == list(range(len(groups)))
    assert np.bincount(groups[out], minlength=len(sizes)).tolist() == [round(share * size) for size in sizes]
    assert (np.diff(kept) > 0).all() and (np.diff(out) > 0).all()
    np.testing.assert_array_equal(out, held_out(groups, share, Draws(seed), "test")[1])
    # The draw of one group does not hang on the others.
    more = np.concatenate([groups, np.full(9, len(sizes))])
    again = held_out(more, share, Draws(seed), "test")[1]
    np.testing.assert_array_equal(out, again[again < len(groups)])


def test_what_is_held_out_is_drawn_by_seed_and_purpose() -> None:
    groups = np.repeat(np.arange(2), 50)
    draws = [(Draws(0), "one"), (Draws(0), "other"), (Draws(1), "one")]
    assert len({held_out(groups, 0.5, *draw)[1].tobytes() for draw in draws}) == 3
    # Groups of one size are not cut at the same places.
    out = held_out(groups, 0.5, Draws(0), "one")[1]
    assert not np.array_equal(out[out < 50], out[out >= 50] - 50)
