"""Builds the layouts of the real data sets in miniature, as people have them on disk."""

import csv
import io
import json
import os
import pickle
import struct
import sys

import numpy as np
from PIL import Image

from reorder_lightning.datamodules.cifar_c import MAIN
from reorder_lightning.datamodules.cifar_classes import COARSE_OF_FINE, FINE

# Four wnids of ImageNet-1K with their class indices 0, 1, 2 and 999.
WNIDS = ("n01440764", "n01443537", "n01484850", "n15075141")


def picture(seed=0, size=(32, 24)):
    """A smooth picture (width, height) that differs for each seed."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def encoded(seed=0, size=(32, 24), kind="JPEG", mode="RGB", **options):
    buffer = io.BytesIO()
    picture(seed, size).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def settle(root):
    """Makes all folders look old, so that their listing may be cached."""
    for folder in (root, *(p for p in root.rglob("*") if p.is_dir())):
        os.utime(folder, (1e9, 1e9))
    return root


def class_folders(root, classes, each=2, start=0):
    for i, name in enumerate(classes):
        for j in range(each):
            write(root / name / f"{name}_{j}.JPEG", encoded(start + 10 * i + j))
    return root


def imagenet(root, classes=WNIDS[:3], val=None, each=4):
    class_folders(root / "train", classes, each)
    class_folders(root / "val", classes if val is None else val, 2, start=500)
    return root


def flat_val(root, count):
    for i in range(1, count + 1):
        write(root / "val" / f"ILSVRC2012_val_{i:08d}.JPEG", encoded(700 + i))


def devkit(root, ids, wnid_of_id):
    """The devkit's ground truth and its meta.mat, with an inner node as the real one has."""
    from scipy.io import savemat

    folder = root / "ILSVRC2012_devkit_t12" / "data"
    write(folder / "ILSVRC2012_validation_ground_truth.txt", "".join(f"{i}\n" for i in ids))
    rows = [*wnid_of_id.items(), (1001, "n00001740")]
    kind = [
        ("ILSVRC2012_ID", object),
        ("WNID", object),
        ("words", object),
        ("num_children", object),
    ]
    synsets = np.array([(i, w, "word", int(i > 1000)) for i, w in rows], dtype=kind)
    savemat(folder / "meta.mat", {"synsets": synsets.reshape(-1, 1)})


def parquet(path, items, names, image="image", label="label", **more):
    """A shard as the datasets package writes it: image struct, class names in the metadata."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    columns = {
        image: pa.array(
            [{"bytes": data, "path": file} for data, file, _ in items],
            pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        ),
        label: pa.array([index for *_, index in items], pa.int64()),
        **{name: pa.array(values, pa.int64()) for name, values in more.items()},
    }
    features = {
        image: {"_type": "Image"},
        label: {"names": list(names), "_type": "ClassLabel"},
        **{name: {"dtype": "int64", "_type": "Value"} for name in more},
    }
    table = pa.table(columns).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(table, path)
    return path


# ------------------------------------------------------------------ fMoW


def fmow_json(boxes, size=(64, 48), one=False):
    """Annotations with the keys of the released files."""
    items = [
        {"ID": number, "box": list(box), "visible": True, **({"category": c} if c else {})}
        for number, c, box in boxes
    ]
    return {
        "gsd": 0.5,
        "img_width": size[0],
        "img_height": size[1],
        "mean_pixel_height": 0.5,
        "utm": "18S",
        "country_code": "USA",
        "cloud_cover": 1,
        "timestamp": "2016-02-04T15:29:21Z",
        "off_nadir_angle_dbl": 20.2,
        "raw_location": "POLYGON ((0 0))",
        "bounding_boxes": items[0] if one else items,
    }


def fmow(root, categories=("airport", "dam", "zoo"), places=3, views=2):
    """train, val and test with ground truth; each place has `_rgb` and `_msrgb` views."""
    number = 0
    for split, count in (("train", places), ("val", 1)):
        for category in categories:
            for place in range(count):
                number += 1
                for view in range(views):
                    stem = (
                        root
                        / split
                        / category
                        / f"{category}_{place}"
                        / f"{category}_{place}_{view}"
                    )
                    box = (number, category, (8, 8, 20, 16))
                    for band in ("rgb", "msrgb"):
                        image = encoded(number * 10 + view, (64, 48))
                        write(stem.with_name(f"{stem.name}_{band}.jpg"), image)
                        content = fmow_json([box], one=view == 1)
                        write(stem.with_name(f"{stem.name}_{band}.json"), content)
    return root


def fmow_test(root, truth=True):
    """Two test places; the second is a false detection beside a zoo."""
    mapping = []
    places = (("0011978", "airport", 4), ("0000007", "zoo", 12))
    for folder, category, location in places:
        mapping.append(
            {"input": f"test_gt/{category}/{category}_{location}", "output": f"test/{folder}"}
        )
        first = int(folder)
        boxes = [(first, category, (8, 8, 20, 16))]
        if category == "zoo":
            boxes.append((first + 1, "false_detection", (30, 20, 16, 16)))
        for view in range(2):
            plain = [(number, None, box) for number, _, box in boxes]
            write(root / f"test/{folder}/{folder}_{view}_rgb.jpg", encoded(view, (64, 48)))
            write(root / f"test/{folder}/{folder}_{view}_rgb.json", fmow_json(plain))
            if truth:
                # The whole image comes first here.
                boxed = [(-1, category, (0, 0, 64, 48)), *boxes]
                place = f"{category}_{location}"
                path = root / f"test_gt/{category}/{place}/{place}_{view}_rgb.json"
                write(path, fmow_json(boxed))
    if truth:
        write(root / "test_gt_mapping.json", mapping)
    return root


_COLUMNS = (
    "split,img_filename,img_path,spatial_reference,epsg,category,visible,img_width,img_height,"
    "country_code,cloud_cover,timestamp,lat,lon,region"
)
WILDS_COLUMNS = _COLUMNS.split(",")

# Split, category, location, view, year.
WILDS_ROWS = (
    ("train", "airport", 0, 0, 2010),
    ("seq", "airport", 9, 0, 2010),
    ("train", "airport", 0, 1, 2011),
    ("train", "zoo", 1, 0, 2012),
    ("train", "zoo", 2, 0, 2014),
    ("val", "zoo", 0, 0, 2009),
    ("val", "dam", 0, 0, 2013),
    ("test", "dam", 5, 0, 2011),
    ("test", "zoo", 6, 0, 2017),
)


def wilds(root, columns=WILDS_COLUMNS):
    root.mkdir(parents=True, exist_ok=True)
    with (root / "rgb_metadata.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="0", extrasaction="ignore")
        writer.writeheader()
        for i, (split, category, location, view, year) in enumerate(WILDS_ROWS):
            name = f"{category}_{location}_{view}_rgb.jpg"
            writer.writerow(
                {
                    "split": split,
                    "img_filename": name,
                    "img_path": f"{split}/{category}/{category}_{location}/{name}",
                    "category": category,
                    "timestamp": f"{year}-05-01T10:00:00Z",
                }
            )
            write(root / f"images/rgb_img_{i}.png", encoded(i, (224, 224), "PNG"))
    return root


# ------------------------------------------------------------------ CIFAR


def cifar_content(each, seed):
    """As the originals: bytes written by Python 2, images as rows of 3072 bytes."""
    rng = np.random.default_rng(seed)
    fine = np.tile(np.arange(100), each).tolist()
    data = rng.integers(0, 256, (len(fine), 3072), dtype=np.uint8)
    # Something to tell the classes by: the mean of the red plane.
    data[:, :1024] = np.array(fine, dtype=np.uint8)[:, None]
    return {
        "filenames": [f"{FINE[c]}_s_{i:06d}.png" for i, c in enumerate(fine)],
        "batch_label": "training batch 1 of 1",
        "fine_labels": fine,
        "coarse_labels": COARSE_OF_FINE[fine].tolist(),
        "data": data,
    }


def python2_pickle(content):
    """Protocol 2 with byte strings and numpy's module names as in 2009."""
    out = io.BytesIO()
    out.write(b"\x80\x02}(")
    for key, value in content.items():
        _string(out, key)
        if isinstance(value, np.ndarray):
            out.write(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85")
            _string(out, "b")
            out.write(b"tR(K\x01")
            out.write(b"".join(b"J" + struct.pack("<i", n) for n in value.shape) + b"\x86")
            out.write(b"cnumpy\ndtype\n(")
            _string(out, "u1")
            out.write(b"K\x00K\x01tR(K\x03")
            _string(out, "|")
            out.write(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
            _string(out, value.tobytes())
            out.write(b"tb")
        elif isinstance(value, list):
            out.write(b"](")
            for item in value:
                if isinstance(item, str):
                    _string(out, item)
                else:
                    out.write(b"J" + struct.pack("<i", item))
            out.write(b"e")
        else:
            _string(out, value)
    out.write(b"u.")
    return out.getvalue()


def _string(out, text):
    data = text if isinstance(text, bytes) else text.encode()
    out.write(b"T" + struct.pack("<i", len(data)) + data)


def cifar_pickles(root, train_each=10, test_each=2):
    folder = root / "cifar-100-python"
    for part, each, seed in (("train", train_each, 1), ("test", test_each, 2)):
        write(folder / part, python2_pickle(cifar_content(each, seed)))
    return root


def cifar_corrupted(root, rows=20, corruptions=MAIN):
    """Severity k of corruption c shows the image (c + k) everywhere."""
    root.mkdir(parents=True, exist_ok=True)
    labels = np.tile(np.arange(rows) % 100, 5)
    np.save(root / "labels.npy", labels)
    for c, name in enumerate(corruptions):
        images = np.zeros((5 * rows, 32, 32, 3), dtype=np.uint8)
        images[...] = (c + np.repeat(np.arange(5), rows))[:, None, None, None]
        np.save(root / f"{name}.npy", images)
    return root


class Evil:
    """Pickles to a call of a function."""

    def __reduce__(self):
        return (sys.setrecursionlimit, (12345,))


def evil_pickle():
    return pickle.dumps({"data": Evil(), "fine_labels": [], "filenames": []}, protocol=2)
