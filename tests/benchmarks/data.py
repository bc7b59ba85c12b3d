"""Data loading on CPU against its peers: ``python -m tests.benchmarks.data [FOLDER] [--index N]``.

FOLDER holds class folders of photographs, as ImageNet's train does; without it some are drawn.
Images a second of the whole training pipeline at the paper's transform, two worker processes,
against torchvision's ImageFolder and timm's loader; CIFAR-100 from memory against torchvision's
CIFAR100 through a DataLoader; with ``--index``, the listing of N empty files in 1,000 folders.
Interleaved in one process; only ratios mean anything. Exits with 1 if a target is missed.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.data import ImageDataset, create_loader
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.transforms import v2

from reorder_lightning.datamodules import CIFAR100, ImageNet
from reorder_lightning.datamodules.images import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    build_transform,
    decode_image,
)
from reorder_lightning.datamodules.listing import list_images
from tests.benchmarks.timing import Report, interleaved_seconds
from tests.data.layouts import cifar_pickles, settle

BATCH, WORKERS = 32, 2


def draw_photographs(root: Path, count: int = 256) -> Path:
    """Noisy JPEGs of ImageNet's median size."""
    rng = np.random.default_rng(0)
    for i in range(count):
        smooth = Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8))
        path = root / f"class{i % 8}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        smooth.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
    return root


def consume(loader: object) -> None:
    for images, _ in loader:  # type: ignore[attr-defined]
        assert images.dtype == torch.float32


def photographs(folder: Path, report: Report) -> None:
    root = Path(tempfile.mkdtemp())
    (root / "train").symlink_to(folder.resolve())
    common = {"batch_size": BATCH, "num_workers": WORKERS, "persistent_workers": True}
    transform = v2.Compose(
        [
            v2.Resize(256),
            v2.CenterCrop(224),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    ours = ImageNet(str(root), batch_size=BATCH, num_workers=WORKERS)
    peers = {
        "ours": ours.train_dataloader(),
        "ImageFolder": DataLoader(
            datasets.ImageFolder(str(folder), transform), shuffle=True, drop_last=True, **common
        ),
        "timm": create_loader(
            ImageDataset(str(folder)),
            (3, 224, 224),
            BATCH,
            is_training=True,
            no_aug=True,
            crop_pct=0.875,
            interpolation="bilinear",
            use_prefetcher=False,
            num_workers=WORKERS,
            persistent_workers=True,
        ),
    }
    seconds = interleaved_seconds({n: lambda p=p: consume(p) for n, p in peers.items()}, 5)
    count = len(peers["ours"]) * BATCH
    report.note("photographs, images a second, ours", count / seconds["ours"])
    report.line("against ImageFolder", seconds["ImageFolder"] / seconds["ours"], 1.5)
    report.note("against timm's loader", seconds["timm"] / seconds["ours"])


def grey_levels(folder: Path, report: Report) -> None:
    """Mean difference to the plain path: decode by PIL, resize and crop by torchvision."""
    plain = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor()])
    ours = build_transform("paper", (224, 224), crop_ratio=224 / 256, train=False)
    for name, factor in (("as they are", 1), ("enlarged 4 times, so read at reduced scale", 4)):
        differences = []
        for path in sorted(folder.rglob("*.jp*g"))[:40]:
            data = path.read_bytes()
            if factor > 1:
                with Image.open(path) as image:
                    size = (image.width * factor, image.height * factor)
                    large = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
                large.save(big := Path(tempfile.gettempdir()) / "big.jpg", quality=90)
                data = big.read_bytes()
            with Image.open(big if factor > 1 else path) as image:
                expected = plain(image.convert("RGB"))
            found = ours(decode_image(data, cover=(256, 256)))
            differences.append((found.int() - expected.int()).abs().float().mean().item())
        report.line(f"grey levels from PIL's path, {name}", max(differences), 2, at_most=True)


def cifar(report: Report) -> None:
    root = cifar_pickles(Path(tempfile.mkdtemp()), train_each=100)
    ours = CIFAR100(str(root), val_split=0, batch_size=128)
    source = ours.open("train")
    theirs = datasets.CIFAR100.__new__(datasets.CIFAR100)  # it insists on the original files
    theirs.data = source.images.permute(0, 2, 3, 1).numpy()
    theirs.targets = source.targets.tolist()
    theirs.target_transform = None
    theirs.transform = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(ours.mean, ours.std),
        ]
    )
    peer = DataLoader(theirs, batch_size=128, shuffle=True, drop_last=True)
    loader = ours.train_dataloader()
    runs = {"ours": lambda: consume(loader), "torchvision": lambda: consume(peer)}
    seconds = interleaved_seconds(runs, 5)
    report.note("CIFAR-100, images a second, ours", len(loader) * 128 / seconds["ours"])
    report.line("against torchvision's CIFAR100", seconds["torchvision"] / seconds["ours"], 5)


def index(count: int, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for c in range(1000):
            sub = root / f"n{c:08d}"
            sub.mkdir()
            for i in range(count // 1000):
                os.close(os.open(sub / f"n{c:08d}_{i}.JPEG", os.O_CREAT | os.O_WRONLY))
        settle(root)
        for name in ("first", "cached"):
            start = time.perf_counter()
            listing = list_images(root, depth=1)
            report.note(f"{len(listing):,} files, {name} listing, s", time.perf_counter() - start)
        size = listing.names.nbytes + listing.ends.nbytes + listing.folder_of.nbytes
        report.note("its memory, shared with the worker processes, MB", size / 1e6)
        strings = sum(sys.getsizeof(listing.path(i)) + 8 for i in range(1000)) * len(listing) / 1000
        report.note("the same as Python strings, in each of them, MB", strings / 1e6)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--index", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the loaders' own processes are what is compared
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    folder = arguments.folder or draw_photographs(Path(tempfile.mkdtemp()))
    report = Report()
    photographs(folder, report)
    grey_levels(folder, report)
    cifar(report)
    if arguments.index:
        index(arguments.index, report)
    return report.status


if __name__ == "__main__":
    raise SystemExit(main())
