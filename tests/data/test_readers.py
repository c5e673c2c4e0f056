from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from hetfl.data.readers import arrays, held_out, idx, jpeg_streams, matlab, pictures, take
from hetfl.data.store import Split
from hetfl.draws import Draws
from hetfl.errors import HetflError


def idx_file(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(head + array.tobytes())


def jpeg(size: tuple[int, int] = (6, 4), seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def one_line(match: str, read, *arguments) -> None:
    with pytest.raises(HetflError, match=match) as caught:
        read(*arguments)
    assert "\n" not in str(caught.value)


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(3), b=np.arange(2))
    a, b = arrays(path, "a", "b")
    assert a.tolist() == [0, 1, 2] and b.tolist() == [0, 1]
    one_line("a.npz: is not in its published format .*c", arrays, path, "c")
    np.savez(path, a=np.array([{}, None], dtype=object))
    one_line("a.npz: is not in its published format .*pickle", arrays, path, "a")
    content = path.read_bytes()
    for damaged in (b"", b"text", content[:-30], content[:50]):
        path.write_bytes(damaged)
        one_line("a.npz: is not in its published format", arrays, path, "a")


def test_idx(tmp_path: Path) -> None:
    path = tmp_path / "images-idx3-ubyte.gz"
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    path.write_bytes(idx_file(images))
    np.testing.assert_array_equal(idx(path), images)
    whole = gzip.decompress(idx_file(images))
    damages = {
        "start as": gzip.compress(b"\0\0\x0d" + whole[3:]),
        "holds 59 bytes": gzip.compress(whole[:-1]),
        "holds 61 bytes": gzip.compress(whole + b"x"),
        "buffer": gzip.compress(whole[:9]),
        "Not a gzipped file": whole,
        "end-of-stream": idx_file(images)[:-12],
    }
    for reason, damaged in damages.items():
        path.write_bytes(damaged)
        one_line(f"idx3-ubyte.gz: is not in its published format .*{reason}", idx, path)


def test_matlab(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    savemat(path, {"X": np.ones((2, 2, 3, 4), np.uint8), "y": np.arange(4)})
    x, y = matlab(path, "X", "y")
    assert x.shape == (2, 2, 3, 4) and y.reshape(-1).tolist() == [0, 1, 2, 3]
    one_line("a.mat: is not in its published format .*z", matlab, path, "z")
    content = path.read_bytes()
    for damaged in (b"", b"text", content[:150], content[:-20], b"MATLAB 7.3" + bytes(600)):
        path.write_bytes(damaged)
        one_line("a.mat: is not in its published format", matlab, path, "X", "y")


def test_jpeg_streams() -> None:
    streams = [jpeg(seed=seed) for seed in range(3)]
    offsets = np.cumsum([0, *map(len, streams)])
    stream = np.frombuffer(b"".join(streams), np.uint8)
    images = jpeg_streams(Path("x.npz"), stream, offsets)
    for image, data in zip(images, streams, strict=True):
        np.testing.assert_array_equal(image, np.asarray(Image.open(io.BytesIO(data))))
    one_line(
        "x.npz: image 1: is not a readable image", jpeg_streams, Path("x.npz"), stream, offsets + [0, 0, -200, 0]
    )
    unlike = [jpeg(), jpeg((4, 6))]
    offsets = np.cumsum([0, *map(len, unlike)])
    stream = np.frombuffer(b"".join(unlike), np.uint8)
    one_line("x.npz: is not in its published format", jpeg_streams, Path("x.npz"), stream, offsets)


def test_pictures_are_sorted_and_stretched(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("b.jpg", "a.jpg", "list.txt"):
            archive.writestr(name, jpeg(seed=ord(name[0])))
    names, images = pictures(path, lambda name: name.endswith(".jpg"), (8, 5))
    assert names == ["a.jpg", "b.jpg"]
    assert images.shape == (2, 8, 5, 3) and images.dtype == np.uint8
    assert pictures(path, lambda name: name == "a.jpg", (8, 5), "L")[1].shape == (1, 8, 5, 1)
    one_line("set.zip: holds none of the images", pictures, path, lambda name: False, (8, 5))


def test_taking_keeps_everything_together() -> None:
    split = Split(np.arange(8, dtype=np.uint8).reshape(4, 2, 1, 1), np.arange(4), {"domain": np.arange(4) + 10})
    part = take(split, np.array([3, 1]))
    assert part.images[:, 0, 0, 0].tolist() == [6, 2]
    assert part.labels.tolist() == [3, 1]
    assert part.attributes["domain"].tolist() == [13, 11]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.floats(0.05, 0.95), st.integers(0, 99))
def test_the_same_share_of_every_group_is_held_out(sizes: list[int], share: float, seed: int) -> None:
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    kept, out = held_out(groups, share, Draws(seed), "test")
    assert sorted([*kept, *out]) == list(range(len(groups)))
    assert np.bincount(groups[out], minlength=len(sizes)).tolist() == [round(share * size) for size in sizes]
    assert (np.diff(kept) > 0).all() and (np.diff(out) > 0).all()
    again = held_out(groups, share, Draws(seed), "test")[1]
    assert np.array_equal(out, again)
