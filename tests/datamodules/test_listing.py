import os
import time

import numpy as np
import pytest

from reorder_lightning.datamodules import listing as listing_module
from reorder_lightning.datamodules.listing import list_images
from tests.data.layouts import settle, write


def tree(root):
    for path in ("b/2.JPEG", "b/10.jpg", "a/1.png", "a/notes.txt", "a/.hidden.jpg", ".git/x.jpg"):
        write(root / path, b"")
    write(root / "ä/ü.png", b"")
    return settle(root)


def paths(listing):
    return [listing.path(i) for i in range(len(listing))]


def test_lists_images_in_order(tmp_path):
    listing = list_images(tree(tmp_path), depth=1)
    assert paths(listing) == ["a/1.png", "b/10.jpg", "b/2.JPEG", "ä/ü.png"]
    assert listing.folders == ["a", "b", "ä"]
    assert listing.folder_of.tolist() == [0, 1, 1, 2]
    assert listing.name(1) == "10.jpg"


@pytest.mark.parametrize(("depth", "expected"), [(0, ["top.jpg"]), (2, ["a/b/deep.jpg"])])
def test_depth(tmp_path, depth, expected):
    write(tmp_path / "a/b/deep.jpg", b"")
    write(tmp_path / "a/middle.jpg", b"")
    write(tmp_path / "top.jpg", b"")
    assert paths(list_images(tmp_path, depth)) == expected


def test_scan_is_remembered(tmp_path, monkeypatch):
    first = paths(list_images(tree(tmp_path), depth=1))
    monkeypatch.setattr(listing_module, "_scan", lambda *_: pytest.fail("scanned again"))
    again = list_images(tmp_path, depth=1)
    assert paths(again) == first
    assert again.folders == ["a", "b", "ä"]


@pytest.mark.parametrize("change", ["add", "remove", "rename", "new folder", "folder gone"])
def test_a_changed_folder_is_noticed(tmp_path, change):
    before = paths(list_images(tree(tmp_path), depth=1))
    if change == "add":
        write(tmp_path / "b/3.jpg", b"")
    elif change == "remove":
        (tmp_path / "b/2.JPEG").unlink()
    elif change == "rename":
        (tmp_path / "b/2.JPEG").rename(tmp_path / "b/3.JPEG")
    elif change == "new folder":
        write(tmp_path / "c/3.jpg", b"")
    else:
        (tmp_path / "a/1.png").unlink()
        (tmp_path / "a/notes.txt").unlink()
        (tmp_path / "a/.hidden.jpg").unlink()
        (tmp_path / "a").rmdir()
    after = paths(list_images(tmp_path, depth=1))
    assert after != before
    assert all((tmp_path / path).exists() for path in after)


def test_a_folder_that_just_changed_is_not_remembered(tmp_path):
    tree(tmp_path)
    os.utime(tmp_path / "a", (time.time(), time.time()))
    list_images(tmp_path, depth=1)
    write(tmp_path / "a/late.jpg", b"")
    os.utime(tmp_path / "a", ns=(0, (tmp_path / "a").stat().st_mtime_ns))
    assert "a/late.jpg" in paths(list_images(tmp_path, depth=1))


def test_damaged_or_unwritable_cache_is_no_error(tmp_path, monkeypatch):
    first = paths(list_images(tree(tmp_path), depth=1))
    cache = listing_module.cache_file(f"{tmp_path.resolve()}\n1")
    assert cache.is_file()
    cache.write_bytes(cache.read_bytes()[:50])
    assert paths(list_images(tmp_path, depth=1)) == first
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert paths(list_images(tmp_path, depth=1)) == first


def test_names_are_no_python_strings(tmp_path):
    listing = list_images(tree(tmp_path), depth=1)
    assert isinstance(listing.names, np.ndarray)
    assert listing.names.dtype == np.uint8
    assert listing.ends.dtype == np.int64


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*none"):
        list_images(tmp_path / "none", depth=1)
