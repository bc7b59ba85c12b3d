"""README's examples do what README says."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from reorder_lightning.cli.configs import configs_folder
from reorder_lightning.cli.main import TRAINER_VERBS, VERBS
from tests.toys import Classifier, loader

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = "\n".join(re.findall(r"```bash\n(.*?)```", README, re.DOTALL))


def named(word):
    (code,) = (code for code in PYTHON if word in code)
    return code


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*logging interval")
def test_callback_in_an_own_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"your_module": Classifier(lr=1e-3), "your_data": loader(16)}
    exec(named("trainer.fit"), names)
    (reorder,) = (c for c in names["trainer"].callbacks if type(c).__name__ == "REOrder")
    assert reorder.phase == "frozen"
    assert reorder.policy.updates == reorder.policy.total_updates


def test_target():
    exec("from reorder_lightning import REOrder\n" + named("REOrder(target="))


def test_layer_in_an_own_model():
    tokens = torch.rand(2, 1 + 196, 3)
    names = {"self": nn.Module(), "tokens": tokens}
    exec(named("PatchOrder("), names)
    assert torch.equal(names["tokens"], torch.cat([tokens[:, :1], tokens[:, 1:][:, order()]], 1))


def order():
    from reorder_lightning import get_order

    return get_order("hilbert", 14, 14)


def test_models_in_timm():
    names = {}
    exec(named("timm.create_model"), names)
    assert names["model"](torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_every_verb_and_config_exists():
    verbs = re.findall(r"(?:^|/|&& )reorder (data check|[a-z]+)", SHELL, re.MULTILINE)
    assert len(verbs) >= 8
    assert {*verbs} <= {*TRAINER_VERBS, *VERBS}
    configs = re.findall(r"configs/[\w/.]+", SHELL)
    assert [c for c in configs if not (configs_folder().parent / c).exists()] == []


def test_every_part_is_tested():
    """A code block that is added here needs a test above."""
    assert len(PYTHON) == 4
