import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reorder_lightning.datamodules import FMoW
from reorder_lightning.datamodules.fmow_boxes import read_boxes, with_margin
from reorder_lightning.datamodules.fmow_classes import ALPHABETICAL, CHALLENGE
from tests.data import layouts
from tests.datamodules.test_images import huge_png

SMALL = {"image_size": 16, "batch_size": 4}


def names(source):
    return [source.name(i) for i in range(len(source))]


def classes(data, split):
    source = data.open(split)
    return [data.class_names[source.target(i)] for i in range(len(source))]


def test_the_two_class_orders():
    """Case 18: 62 in alphabetical order, 63 of the challenge; 18 of 62 indices differ."""
    assert [ALPHABETICAL.index(n) for n in ("airport", "interchange", "zoo")] == [0, 26, 61]
    assert ALPHABETICAL.index("impoverished_settlement") == 25
    assert (len(CHALLENGE), CHALLENGE[0], CHALLENGE[1]) == (63, "false_detection", "airport")
    assert CHALLENGE.index("impoverished_settlement") == 43
    assert sum(CHALLENGE.index(n) - 1 != i for i, n in enumerate(ALPHABETICAL)) == 18
    assert FMoW("nowhere", classes="challenge").num_classes == 63


def test_the_order_is_in_the_checkpoint():
    """Case 18: a checkpoint of one order isn't taken for the other."""
    state = FMoW("nowhere").state_dict()
    FMoW("nowhere").load_state_dict(state)
    with pytest.raises(
        ValueError, match=r"62 then, 63 now.*index 0 on.*'airport'.*'false_detection'"
    ):
        FMoW("nowhere", classes="challenge").load_state_dict(state)


def test_released_tree(tmp_path):
    data = FMoW(str(layouts.fmow(tmp_path)), **SMALL)
    train = data.open("train")
    assert len(train) == 18
    assert all(n.endswith("_rgb.jpg") for n in names(train))
    assert set(classes(data, "val")) == {"airport", "dam", "zoo"}
    assert Path(train.name(0)).parts[-3:] == ("airport", "airport_0", "airport_0_0_rgb.jpg")
    images, targets = next(iter(data.train_dataloader()))
    assert images.shape == (4, 3, 16, 16)
    assert targets.dtype == torch.int64


def test_false_detection_folder_is_left_out_with_a_count(tmp_path, caplog):
    """Case 18: it is no class of the 62, and doesn't shift the others."""
    root = layouts.fmow(tmp_path, ("airport", "false_detection", "fire_station"))
    data = FMoW(str(root), **SMALL)
    assert set(classes(data, "train")) == {"airport", "fire_station"}
    assert "left out 6 images" in caplog.text
    data = FMoW(str(root), classes="challenge", **SMALL)
    assert classes(data, "train").count("false_detection") == 6


def test_unknown_folder(tmp_path):
    with pytest.raises(ValueError, match="no categories of fMoW: castle"):
        FMoW(str(layouts.fmow(tmp_path, ("airport", "castle"))), **SMALL).setup("fit")


@pytest.mark.parametrize(
    ("box", "crop"),
    [
        ((0, 0, 800, 800), (0, 0, 860, 860)),  # share .8: 15 %, clipped at the left and top
        ((200, 200, 400, 400), (160, 160, 480, 480)),  # .4: 20 %
        ((200, 200, 300, 250), (155, 138, 390, 374)),  # .3: 30 %; .25: 50 %
        ((400, 400, 100, 99), (350, 301, 200, 297)),  # .1: 100 %; below: 200 %
    ],
)
def test_margin_of_the_challenge(box, crop):
    assert with_margin(box, 1000, 1000) == crop


def test_margin_uses_each_axis_of_its_own():
    assert with_margin((100, 10, 100, 50), 1000, 100) == (50, 7, 200, 56)


def test_boxes(tmp_path):
    root = layouts.fmow(tmp_path)
    image = root / "train/dam/dam_0/dam_0_0_rgb.json"
    boxes = [(-1, "dam", (0, 0, 64, 48)), (5, "dam", (32, 24, 2, 30)), (6, "dam", (0, 0, 32, 48))]
    layouts.write(image, layouts.fmow_json(boxes))
    data = FMoW(str(root), crop="box", **SMALL)
    train = data.open("train")
    mine = [n for n in names(train) if "dam_0_0" in n]
    assert mine == [f"{image.with_suffix('.jpg')}#6"]  # not the whole image, not the sliver
    index = names(train).index(mine[0])
    assert train.box(index) == (0, 0, 34, 48)
    assert train.decode(index).shape == (3, 48, 34)
    assert next(iter(data.train_dataloader()))[0].shape == (4, 3, 16, 16)


def test_list_and_single_box(tmp_path):
    for one in (False, True):
        content = layouts.fmow_json([(3, "zoo", (1, 2, 30, 40))], one=one)
        path = layouts.write(tmp_path / "a.json", content)
        assert read_boxes(path) == ([(3, "zoo", (1, 2, 30, 40))], 64, 48)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", {"bounding_boxes": [{"ID": 1}], "img_width": 1, "img_height": 1}]
)
def test_json_that_is_none(tmp_path, content):
    root = layouts.fmow(tmp_path)
    path = layouts.write(root / "train/dam/dam_0/dam_0_0_rgb.json", content)
    with pytest.raises(ValueError, match=f"{path} is no JSON of fMoW"):
        FMoW(str(root), crop="box", **SMALL).setup("fit")


def test_json_missing(tmp_path):
    root = layouts.fmow(tmp_path)
    (root / "train/dam/dam_0/dam_0_0_rgb.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"There is no .*dam_0_0_rgb\.json beside its image"
    ):
        FMoW(str(root), crop="box", **SMALL).setup("fit")


def test_boxes_are_read_once(tmp_path, monkeypatch):
    root = layouts.settle(layouts.fmow(tmp_path))
    first = FMoW(str(root), crop="box", **SMALL).open("train")
    module = "reorder_lightning.datamodules.fmow_boxes.read_boxes"
    monkeypatch.setattr(module, lambda path: pytest.fail("read again"))
    again = FMoW(str(root), crop="box", **SMALL).open("train")
    assert names(again) == names(first)
    assert again.table.boxes.tolist() == first.table.boxes.tolist()


def test_views_of_a_place_stay_together(tmp_path):
    data = FMoW(str(layouts.fmow(tmp_path)), val_split=0.34, **SMALL)
    train, val = ({Path(n).parent for n in names(data.open(s))} for s in ("train", "val"))
    assert (len(train), len(val)) == (6, 3)
    assert not train & val
    assert classes(data, "val").count("dam") == 2


def test_test_images_by_id(tmp_path):
    """Case 18: the ground truth of test is an archive of its own; boxes are matched by ID."""
    root = layouts.fmow_test(layouts.fmow(tmp_path))
    data = FMoW(str(root), crop="box", test="test", **SMALL)
    assert classes(data, "test") == ["zoo", "zoo", "airport", "airport"]
    data = FMoW(str(root), crop="box", test="test", classes="challenge", **SMALL)
    assert classes(data, "test").count("false_detection") == 2


def test_test_images_without_ground_truth(tmp_path):
    """Case 18: predicting works, testing says what is missing."""
    root = layouts.fmow_test(layouts.fmow(tmp_path), truth=False)
    data = FMoW(str(root), crop="box", test="test", **SMALL)
    assert len(data.open("predict")) == 6
    with pytest.raises(ValueError, match=r"archive of its own: unpack test_gt and test_gt_mapping"):
        data.setup("test")


@pytest.mark.parametrize("crop", ["box", "full"])
def test_one_prediction_for_all_views(tmp_path, crop):
    root = layouts.fmow_test(layouts.fmow(tmp_path))
    data = FMoW(str(root), crop=crop, test="test", **SMALL)
    found = [n for _, batch in data.predict_dataloader() for n in batch]
    assert len(found) == len(set(found)) == 6
    probabilities = torch.zeros(6, 62)
    for i, name in enumerate(found):
        place, view = name.rpartition("#")[2], "_0_rgb" in name
        probabilities[i, 0 if view else 61] = 0.4 if view else (0.9 if place == "7" else 0.1)
    places, challenge = data.write_tables(tmp_path / "out", found, probabilities)
    rows = {row["place"]: row for row in csv.DictReader(places.read_text().splitlines())}
    assert rows["7"] == {"place": "7", "class": "zoo", "probability": "0.450000", "views": "2"}
    assert rows["11978"]["class"] == "airport"
    assert challenge.name == "challenge.csv"
    assert set(challenge.read_text().splitlines()) == {"7,zoo", "8,airport", "11978,airport"}


def test_places_of_validation_images(tmp_path):
    data = FMoW(str(layouts.fmow(tmp_path)), **SMALL)
    found = names(data.open("predict"))
    (places,) = data.write_tables(tmp_path / "out", found, torch.eye(62)[: len(found)])
    assert [r["place"] for r in csv.DictReader(places.read_text().splitlines())] == [
        "airport_0",
        "dam_0",
        "zoo_0",
    ]


def test_wilds(tmp_path):
    """Rows are counted over the whole csv; years decide between the splits."""
    data = FMoW(str(layouts.wilds(tmp_path)), test="test", **SMALL)
    numbers = {s: [Path(n).stem for n in names(data.open(s))] for s in ("train", "val", "test")}
    assert numbers["train"] == ["rgb_img_0", "rgb_img_2", "rgb_img_3"]
    assert numbers["val"] == ["rgb_img_6"]
    assert numbers["test"] == ["rgb_img_8"]
    assert classes(data, "train") == ["airport", "airport", "zoo"]
    assert next(iter(data.val_dataloader()))[0].shape == (1, 3, 16, 16)
    data = FMoW(str(tmp_path), test="test", shift=False, **SMALL)
    assert [Path(n).stem for n in names(data.open("val"))] == ["rgb_img_5"]
    assert [Path(n).stem for n in names(data.open("test"))] == ["rgb_img_7"]


def test_wilds_places_stay_together(tmp_path):
    data = FMoW(str(layouts.wilds(tmp_path)), **SMALL)
    assert len(set(data.open("train").places.tolist())) == 2


def test_wilds_with_a_missing_column(tmp_path):
    columns = [c for c in layouts.WILDS_COLUMNS if c != "timestamp"]
    data = FMoW(str(layouts.wilds(tmp_path, columns)), **SMALL)
    with pytest.raises(ValueError, match=r"rgb_metadata\.csv lacks the columns timestamp"):
        data.setup("fit")


@pytest.mark.parametrize("workers", [0, 1])
def test_huge_images(tmp_path, workers):
    """Case 21: PIL's limit is in nobody's way and stays as it is."""
    root = layouts.fmow(tmp_path, ("airport",), places=1, views=1)
    layouts.write(root / "train/airport/airport_0/airport_0_0_rgb.jpg", huge_png(15000, 13000))
    limit = Image.MAX_IMAGE_PIXELS
    data = FMoW(str(root), num_workers=workers, **SMALL)
    assert [len(images) for images, _ in data.train_dataloader()] == [1]
    assert limit == Image.MAX_IMAGE_PIXELS


def test_no_tree(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Expected the folders train and val of fMoW-rgb"):
        FMoW(str(tmp_path), **SMALL).setup("fit")
    (tmp_path / "train" / "dam" / "dam_0").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"holds no image \*_rgb\.jpg"):
        FMoW(str(tmp_path), **SMALL).setup("fit")


@pytest.mark.parametrize("name", ["crop", "classes", "test"])
def test_unknown_choices(name):
    with pytest.raises(ValueError, match=f"`{name}` to be one of .* but got 'any'"):
        FMoW("nowhere", **{name: "any"})


def test_msrgb_is_found_out_by_bytes(tmp_path):
    from reorder_lightning.datamodules.fmow import _rgb_files
    from reorder_lightning.datamodules.listing import list_images

    for name in ("a_rgb.jpg", "a_msrgb.jpg", "b_rgb.png", "rgb.jpg", "_rgb.jpg"):
        layouts.write(tmp_path / name, b"")
    listing = list_images(tmp_path, depth=0)
    found = [listing.path(int(i)) for i in _rgb_files(listing)]
    assert found == ["a_rgb.jpg"]
    assert np.all(np.diff(listing.ends) > 0)
