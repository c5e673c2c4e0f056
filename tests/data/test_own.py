"""Data sets of one's own: folders of images by class, and tables of Hugging Face."""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from PIL import Image, ImageOps
from pyarrow import ipc, parquet

from hetfl.data.own import OwnSettings, layout_of, look, outline, prepare_own, statistics
from hetfl.data.store import read_card, read_dataset, verify_dataset
from hetfl.errors import HetflError

CLASSES = ("ant", "bee")


def encoded(value: int, size: tuple[int, int] = (8, 6), kind: str = "PNG") -> bytes:
    """An image of one colour, width x height."""
    content = io.BytesIO()
    Image.new("RGB", size, (value, value // 2, 0)).save(content, kind)
    return content.getvalue()


def write_images(folder: Path, parts: tuple[str, ...] = ("",), each: int = 5) -> Path:
    for part in parts:
        for number, name in enumerate(CLASSES):
            place = folder / part / name
            place.mkdir(parents=True)
            for image in range(each):
                (place / f"{image}.png").write_bytes(encoded(100 * number + 10 * image))
            (place / "notes.txt").write_text("no image")
            (place / ".hidden.png").write_text("no image")
    return folder


def features(**columns: str) -> dict[bytes, bytes]:
    """What Hugging Face writes into the metadata of a schema."""
    names = {"ClassLabel": {"names": [*CLASSES]}}
    types = {name: {"_type": kind, **names.get(kind, {})} for name, kind in columns.items()}
    return {b"huggingface": json.dumps({"info": {"features": types}}).encode()}


def table(labels: list, image: str = "picture", label: str = "kind", **columns: str) -> pa.Table:
    images = pa.array(
        [{"bytes": encoded(50 * number), "path": None} for number in range(len(labels))],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    made = pa.table({image: images, label: pa.array(labels)})
    return made.replace_schema_metadata(features(**columns) if columns else None)


def prepared(tmp_path: Path, **settings):
    out = tmp_path / "data" / "mine"
    prepare_own("mine", OwnSettings(path="images", **settings), tmp_path, out)
    verify_dataset(out)
    return read_dataset(out)


def test_a_folder_with_train_and_test(tmp_path: Path) -> None:
    write_images(tmp_path / "images", ("train", "Test"))
    found = prepared(tmp_path, size=4, title="Insects", licence="mine")
    assert found.title == "Insects" and found.class_names == CLASSES
    assert {name: subset.images.shape for name, subset in found.subsets.items()} == {
        "train": (10, 4, 4, 3),
        "test": (10, 4, 4, 3),
    }
    assert found.subset("train").labels.tolist() == [0] * 5 + [1] * 5
    assert found.subset("train").images[6, 0, 0].tolist() == [110, 55, 0]
    card = read_card(tmp_path / "data" / "mine")
    assert card.licence == "mine" and len(card.source[0]["sha256"]) == 64


def test_the_checksum_of_the_source_covers_what_is_in_the_files(tmp_path: Path) -> None:
    folder, found = write_images(tmp_path / "images"), set()
    for value in (10, 11):
        (folder / "ant" / "0.png").write_bytes(encoded(value))
        prepared(tmp_path, size=4)
        found.add(read_card(tmp_path / "data" / "mine").source[0]["sha256"])
    assert len(found) == 2


def test_a_folder_that_is_not_divided_gets_its_test_images_by_a_keyed_draw(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    first, again = prepared(tmp_path, size=4, public=0.25), prepared(tmp_path, size=4, public=0.25)
    assert {name: len(subset) for name, subset in first.subsets.items()} == {"public": 2, "train": 6, "test": 2}
    assert sorted(first.subset("test").labels) == [0, 1]
    assert first.checksum == again.checksum != prepared(tmp_path, size=4, public=0.25, seed=1).checksum
    # The labels alone say the same, without reading an image.
    alone = outline("mine", OwnSettings(path="images", size=4, public=0.25), tmp_path)
    assert all((alone.subset(name).labels == first.subset(name).labels).all() for name in first.subsets)


def test_folders_that_dvc_would_not_look_into_are_refused(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", ("train", "test"), each=1)
    (tmp_path / "linked").symlink_to(folder)
    assert look("mine", OwnSettings(path="linked"), tmp_path).class_names == ("ant", "bee")
    for place in ("train/cow", "train/bee/more"):
        (folder / place).symlink_to(folder / "train" / "ant")
        with pytest.raises(
            HetflError, match=f"{place}: is a link to a folder, which DVC does not look into; put the"
        ):
            prepared(tmp_path)
        (folder / place).unlink()


def test_a_share_may_not_be_all_of_a_class(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", each=5)
    for number in range(1, 5):
        (folder / "bee" / f"{number}.png").unlink()
    with pytest.raises(
        HetflError, match=r"data\.mine\.test: 0\.6 leaves class 'bee' no image to train on; set a small"
    ):
        prepared(tmp_path, test=0.6)


def test_val_is_for_testing_where_nothing_else_is(tmp_path: Path) -> None:
    write_images(tmp_path / "images", ("train", "val"), each=2)
    assert {*prepared(tmp_path).subsets} == {"train", "test"}


def test_images_are_cut_or_stretched_and_kept_in_colour_or_grey(tmp_path: Path) -> None:
    write_images(tmp_path / "images", ("train", "test"), each=1)
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 255
    Image.fromarray(wide).save(tmp_path / "images" / "train" / "ant" / "0.png")
    assert prepared(tmp_path, size=4).subset("train").images[0].min() == 255  # the white centre
    stretched = prepared(tmp_path, size=4, fit="stretch", grey=True).subset("train").images
    assert stretched.shape == (2, 4, 4, 1) and stretched[0].min() < 100
    # Palettes and transparency are images too.
    for number, image in enumerate((Image.new("P", (4, 4)), Image.new("RGBA", (4, 4), (0, 0, 0, 0)))):
        image.save(tmp_path / "images" / "train" / "bee" / f"other{number}.png")
    found = prepared(tmp_path, size=4).subset("train").images
    assert len(found) == 4 and (found[3] == 255).all()  # what is transparent is white


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_16_bits_of_grey_become_8(suffix: str, tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 16).round().astype(np.uint16).reshape(4, 4)
    ants = write_images(tmp_path / "images", ("train", "test"), each=1) / "train" / "ant"
    if suffix == "pgm":
        (ants / "0.pgm").write_bytes(b"P5 4 4 65535\n" + ramp.astype(">u2").tobytes())
    else:
        Image.fromarray(ramp).save(ants / f"0.{suffix}")
    if suffix != "png":
        (ants / "0.png").unlink()
    found = prepared(tmp_path, size=4, grey=True).subset("train").images[0, ..., 0]
    assert (found.ravel() == np.arange(0, 256, 17)).all()


@pytest.mark.parametrize("pixels", [np.full((4, 4), 0.5, np.float32), np.full((4, 4), 70_000, np.int32)])
def test_grey_without_a_known_white_is_refused(pixels: np.ndarray, tmp_path: Path) -> None:
    ants = write_images(tmp_path / "images", ("train", "test"), each=1) / "train" / "ant"
    Image.fromarray(pixels).save(ants / "1.tiff")
    with pytest.raises(HetflError, match=r"1\.tiff: is not .*where white is unknown; save 8 or 16 bits"):
        prepared(tmp_path, size=4)


def exif(orientation: int, *more: tuple[int, int, int, int]) -> bytes:
    """EXIF with an orientation and more entries: tag, type, count, value."""
    entries = [struct.pack(">HHII", *entry) for entry in ((0x0112, 3, 1, orientation << 16), *more)]
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, len(entries)) + b"".join(entries) + bytes(4)


def with_exif(kind: str, written: bytes) -> bytes:
    """An encoded image whose pixels all differ, 7 x 5."""
    content = io.BytesIO()
    Image.fromarray(np.arange(105, dtype=np.uint8).reshape(5, 7, 3)).save(content, kind, exif=written)
    return content.getvalue()


def stored(tmp_path: Path, content: bytes) -> np.ndarray:
    """What a data set holds of an encoded image, stretched to 6 x 6."""
    path = write_images(tmp_path / "images", ("train", "test"), each=1) / "train" / "ant" / "0.png"
    path.write_bytes(content)
    return prepared(tmp_path, size=6, fit="stretch").subset("train").images[0]


def stretched(image: Image.Image) -> np.ndarray:
    return np.asarray(image.resize((6, 6), Image.Resampling.BILINEAR))


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 10))
def test_images_are_turned_as_pillow_turns_them(tmp_path: Path, orientation: int, kind: str) -> None:
    content = with_exif(kind, exif(orientation))
    with Image.open(io.BytesIO(content)) as image:
        turned = ImageOps.exif_transpose(image)
    assert turned.size == ((5, 7) if 5 <= orientation <= 8 else (7, 5))
    assert (stored(tmp_path, content) == stretched(turned)).all()


@pytest.mark.parametrize(
    ("written", "turned"),
    [
        (exif(3, (0x0128, 4, 1, 2**32 - 1)), True),  # values that Pillow reads and cannot write
        (exif(3, (0x0110, 5, 1, 8)), True),
        (b"Exif\0\0none", False),
    ],
)
def test_odd_exif_is_no_obstacle(tmp_path: Path, written: bytes, turned: bool) -> None:
    content = with_exif("jpeg", written)
    with Image.open(io.BytesIO(content)) as image:
        expected = image.transpose(Image.Transpose.ROTATE_180) if turned else image.copy()
    assert (stored(tmp_path, content) == stretched(expected)).all()


def test_what_a_look_says(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    settings = OwnSettings(path="images")
    mean, std, grey, side = statistics(look("mine", settings, tmp_path), settings)
    assert mean == pytest.approx([70 / 255, 35 / 255, 0]) and not grey and side == 6
    assert std[0] == pytest.approx(np.std([0, 10, 20, 30, 40, 100, 110, 120, 130, 140]) / 255) and std[2] > 0


@pytest.mark.parametrize("layout", ["parquet", "datasets"])
def test_tables_of_hugging_face(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / "images"
    parts = {"train": [1, 0, 1], "validation": [0], "test": [0, 1]}
    made = {part: table(labels, picture="Image", kind="ClassLabel") for part, labels in parts.items()}
    folder.mkdir()
    for part, rows in made.items():
        if layout == "parquet":
            parquet.write_table(rows, folder / f"{part}-00000-of-00001.parquet")
            continue
        (folder / part).mkdir()
        with ipc.new_stream(folder / part / "data.arrow", rows.schema) as out:
            out.write_table(rows)
        (folder / part / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    if layout == "datasets":
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*parts]}))
    assert layout_of(folder) == layout
    found = prepared(tmp_path, layout=layout, size=4)
    assert found.class_names == CLASSES
    assert {name: subset.labels.tolist() for name, subset in found.subsets.items()} == {
        "train": [1, 0, 1],
        "val": [0],
        "test": [0, 1],
    }
    assert found.subset("train").images[2, 0, 0].tolist() == [100, 50, 0]


def test_plain_parquet_has_its_columns_named(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(encoded(7))
    paths = pa.table({"file": ["a.png"] * 20, "of": [10, 2] * 10})
    parquet.write_table(paths, folder / "part.parquet")
    with pytest.raises(HetflError, match="part.parquet: has no column of type Image and none called 'image'"):
        prepared(tmp_path, layout="parquet")
    with pytest.raises(HetflError, match="unknown column 'fil'; did you mean 'file'"):
        prepared(tmp_path, layout="parquet", image="fil", label="of")
    found = prepared(tmp_path, layout="parquet", image="file", label="of", size=4)
    assert found.class_names == ("2", "10")  # in the order of numbers
    assert found.subset("test").images[0, 0, 0].tolist() == [7, 3, 0]


def test_a_folder_may_lack_classes_that_are_named(tmp_path: Path) -> None:
    """As at a node that has samples of some classes only."""
    write_images(tmp_path / "images")
    classes = ("wasp", "bee", "ant")
    found = prepared(tmp_path, classes=classes)
    assert found.class_names == classes
    assert found.subset("train").class_counts(3).tolist() == [0, 4, 4]
    assert outline("mine", OwnSettings(path="images", classes=classes), tmp_path).class_names == classes
    with pytest.raises(HetflError, match=r"params.yaml: data.mine.classes: unknown class 'ant'"):
        prepared(tmp_path, classes=("bee", "wasp"))
    with pytest.raises(ValueError, match="has 'bee' twice; name each class once"):
        OwnSettings(path="images", classes=("bee", "bee"))


def test_a_name_that_cannot_be_written_down_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found in a folder; not every file system takes such a name, so it is not written."""
    write_images(tmp_path / "images")
    odd = os.fsdecode(os.fsencode(tmp_path / "images/ant") + b"/K\xfcche.png")
    monkeypatch.setattr(Path, "rglob", lambda folder, pattern: [Path(odd)])
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    with pytest.raises(HetflError, match=r"K\\xfcche.png': its name is not UTF-8; rename it"):
        look("mine", OwnSettings(path="images"), tmp_path)


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    settings = OwnSettings(path="images")
    with pytest.raises(HetflError, match=r"data\.mine\.path: 'images' is not a folder"):
        look("mine", settings, tmp_path)
    with pytest.raises(HetflError, match="is not a folder"):
        layout_of(tmp_path / "images")
    write_images(tmp_path / "images", ("train",), each=1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(HetflError, match="has no images in folders by class"):
        layout_of(tmp_path / "empty")
    with pytest.raises(HetflError, match=r"data\.mine\.test: 0\.2 of each class is no image"):
        prepared(tmp_path)
    extra = tmp_path / "images" / "test" / "wasp"
    extra.mkdir(parents=True)
    (extra / "0.png").write_bytes(encoded(1))
    with pytest.raises(HetflError, match="class 'wasp' has no image to train on"):
        prepared(tmp_path)
    (tmp_path / "images" / "train" / "wasp").mkdir()
    (tmp_path / "images" / "train" / "wasp" / "0.jpg").write_bytes(encoded(1)[:45])
    with pytest.raises(HetflError, match="train/wasp/0.jpg: is not a readable image") as failed:
        prepared(tmp_path)
    assert len(str(failed.value).splitlines()) == 1
    broken = tmp_path / "tables"
    broken.mkdir()
    (broken / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(HetflError, match="cannot be read as parquet"):
        look("mine", OwnSettings(path="tables", layout="parquet"), tmp_path)
    parquet.write_table(table([0, -1], picture="Image", kind="ClassLabel"), broken / "train.parquet")
    with pytest.raises(HetflError, match="train.parquet:1: kind is -1, which is no class"):
        look("mine", OwnSettings(path="tables", layout="parquet"), tmp_path)


def test_the_documentations_lines_are_settings() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    block = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    settings = OwnSettings.model_validate(block["data"]["flowers"])
    assert settings.test == 0.2 and settings.mean == (0.41, 0.38, 0.29)
