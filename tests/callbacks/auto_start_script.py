"""Starts with start="auto" in two processes; run by test_auto_start.py.

usage: auto_start_script.py FOLDER FAILS
"""

import json
import sys
from pathlib import Path

from torch.utils.data import DataLoader

from reorder_lightning import prior_cache
from reorder_lightning.callbacks.reorder import REOrder
from tests.callbacks.test_auto_start import striped
from tests.toys import Classifier, trainer


def main(folder, fails):
    calls = []

    def rank(*args, **kwargs):
        calls.append(1)
        if int(fails):
            raise ValueError("rank zero found something wrong")
        return measure(*args, **kwargs)

    measure, prior_cache.order_prior = prior_cache.order_prior, rank
    callback = REOrder("auto", warmup=0, policy=0)
    run = trainer(folder, callback, strategy="ddp", devices=2)
    content = {}
    try:
        run.fit(Classifier(), DataLoader(striped(standing=True), 4))
        content["order"] = callback.order.tolist()
        content["start"] = callback.start_order.tolist()
    except ValueError as error:
        content["error"] = str(error)
    content["ranked"] = len(calls)
    Path(folder, f"rank{run.global_rank}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
