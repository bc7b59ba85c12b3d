"""Folders of finished trainings, made up: as `reorder fit` and `reorder study` leave them."""

import json

import numpy as np
import yaml

CONFIG = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 8, "logger": {"class_path": "CSVLogger"}},
    "model": {
        "class_path": "reorder_lightning.models.Mamba",
        "init_args": {"depth": 3, "order": "row"},
    },
    "data": {"class_path": "reorder_lightning.datamodules.CIFAR100", "init_args": {"seed": 0}},
    "reorder": None,
}
POLICY = {"class_path": "reorder_lightning.REOrder", "init_args": {"start": None, "lr": 0.1}}


def correct(images, accuracy, seed, method_noise=0.0):
    """Whether images are classified correctly: hard ones are hard for every seed, ``(n,)``."""
    hard = np.random.default_rng(99).normal(size=images)
    own = np.random.default_rng(seed)
    score = hard + own.normal(0, 0.7, images) + own.normal(0, method_noise)
    return score < np.quantile(hard * np.sqrt(1.49), accuracy)


def write_run(
    folder, top1, *, order="row", seed=0, reorder=None, study=None, config=None, costs=None,
    curve=(), accepted=None, movement=(),
):  # fmt: skip
    """Write a finished run; `config` overrides parts of it by dotted name."""
    full = json.loads(json.dumps(CONFIG)) | {"seed_everything": seed, "reorder": reorder}
    full["model"]["init_args"]["order"] = order
    for name, value in (config or {}).items():
        *above, last = name.split(".")
        part = full
        for key in above:
            part = part[key]
        part[last] = value
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(full))
    top1 = np.asarray(top1, dtype=int)
    targets = np.arange(len(top1)) % 10
    lines = [f"{i},{t},{t if c else 11},{c},{max(c, i % 2)},0.500000" for i, (t, c) in
             enumerate(zip(targets, top1, strict=True))]  # fmt: skip
    (folder / "images.csv").write_text("image,target,predicted,top1,top5,loss\n" + "\n".join(lines))
    result = {"model": "Mamba", "images": len(top1), "epochs": 8, "top1": float(top1.mean())}
    result |= {"parameters": 123456, "gflops": 0.0123, "seconds_per_epoch": None} | (costs or {})
    (folder / "result.json").write_text(json.dumps(result))
    if study:
        (folder / "study.json").write_text(json.dumps({"order": order, "seed": seed} | study))
    if curve:
        rows = [f"{e},{10 * e + 9},1.0,{v}," for e, v in enumerate(curve)]
        if accepted is not None:
            rows.append(f"{len(curve) - 1},{10 * len(curve) - 1},,,{float(accepted)}")
        header = "epoch,step,val/loss,val/top1,reorder/accepted"
        (folder / "metrics.csv").write_text("\n".join([header, *rows]) + "\n")
    if movement:
        (folder / "order").mkdir()
        rows = [f"{e},0.3,-1.0,-1.1,{tau}" for e, tau in movement]
        header = "epoch,temperature,reward,baseline,kendall_to_start"
        (folder / "order" / "order.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder
