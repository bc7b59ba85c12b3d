"""Tokens of VQ models: tiny ones with random weights, saved into a folder."""

import json
import sys

import pytest
import torch

from reorder_lightning.patch_tokens import tokenize
from reorder_lightning.vq_tokens import DiffusersVQ, TransformersVQ

TINY = {"embed_dim": 4, "latent_channels": 4, "base_channels": 32, "num_res_blocks": 1}
TINY |= {"channel_multiplier": [1, 1, 2]}  # two halvings: a token for 4x4 pixels


def configs(transformers):
    return {
        "Chameleon": lambda: transformers.ChameleonVQVAEConfig(num_embeddings=17, **TINY),
        "Janus": lambda: transformers.JanusVQVAEConfig(num_embeddings=17, **TINY),
        "Emu3": lambda: transformers.Emu3VQVAEConfig(
            codebook_size=17, hidden_size=64, attn_resolutions=[], **TINY
        ),
    }


def save_vq(folder, family="Chameleon"):
    """A model with random weights, in a folder."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, f"{family}VQVAE"):
        pytest.skip(f"this transformers has no {family}VQVAE")
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}VQVAE")(configs(transformers)[family]())
    model.save_pretrained(folder)
    return model.eval()


def save_diffusers(folder, **kwargs):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 3}
    blocks |= {"up_block_types": ["UpDecoderBlock2D"] * 3, "block_out_channels": [8, 8, 8]}
    model = diffusers.VQModel(**blocks, norm_num_groups=4, num_vq_embeddings=17, **kwargs)
    model.save_pretrained(folder)
    return model.eval()


def images(n=3, height=16, width=24):
    return torch.rand(n, 3, height, width, generator=torch.Generator().manual_seed(0))


def direct(model, pixels):
    """Tokens by the model's parts, written out."""
    with torch.no_grad():
        latents = model.quant_conv(model.encoder(pixels))
        codes = model.quantize.embedding.weight
        return torch.cdist(latents.permute(0, 2, 3, 1).flatten(0, 2), codes).argmin(1)


# ------------------------------------------------------------------ transformers


@pytest.mark.parametrize("family", ["Chameleon", "Janus", "Emu3"])
def test_tokens_of_transformers(tmp_path, family):
    model = save_vq(tmp_path, family)
    tokenizer = TransformersVQ(str(tmp_path), device="cpu")
    pictures = images()
    tokens = tokenize(lambda: pictures.split(2), tokenizer)
    assert tokenizer.num_codes == 17
    assert tokens.shape == (3, 4, 6)
    assert len({*tokens.flatten()}) > 1
    if family != "Emu3":  # which has a time axis
        assert tokens.flatten().tolist() == direct(model, pictures * 2 - 1).tolist()
    else:
        out = model.encode(pictures * 2 - 1, image_sizes=torch.tensor([[16, 24]] * 3))
        theirs = torch.stack([*getattr(out, "image_tokens", out)])
        assert tokens.tolist() == theirs.tolist()


def test_images_are_resized_to_the_grid(tmp_path):
    save_vq(tmp_path)
    assert TransformersVQ(str(tmp_path)).encode(images(2, 17, 5)).shape == (2, 4, 1)
    assert TransformersVQ(str(tmp_path)).encode(images(2, 1, 30)).shape == (2, 1, 8)
    tokenizer = TransformersVQ(str(tmp_path), grid_size=(3, 5))
    assert tokenizer.encode(images(2)).shape == (2, 3, 5)
    plain = images(2, 12, 20)
    assert tokenizer.encode(plain).equal(TransformersVQ(str(tmp_path)).encode(plain))


def test_values_are_those_of_the_image_processor(tmp_path):
    model = save_vq(tmp_path)
    given = {"image_processor_type": "ChameleonImageProcessor", "rescale_factor": 0.0078}
    given |= {"image_mean": [1.0, 0.9, 0.8], "image_std": [1.0, 0.5, 0.25]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    pictures = images()
    mean, std = (torch.tensor(given[k]).view(3, 1, 1) for k in ("image_mean", "image_std"))
    expected = direct(model, (pictures * 255 * 0.0078 - mean) / std)
    tokens = TransformersVQ(str(tmp_path)).encode(pictures)
    assert tokens.flatten().tolist() == expected.tolist()
    assert expected.tolist() != direct(model, pictures * 2 - 1).tolist()


@pytest.mark.parametrize("family", ["Chameleon", "Janus", "Emu3"])
def test_the_vq_part_of_a_whole_model(tmp_path, family):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, f"{family}VQVAE"):
        pytest.skip(f"this transformers has no {family}VQVAE")
    small = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    small |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    kwargs = {
        "Chameleon": {"vocabulary_map": {"<image>": 1}, **small},
        "Emu3": {"vocabulary_map": {"<image>": 1}, "text_config": small},
        "Janus": {
            "text_config": {"model_type": "llama", **small},
            "vision_config": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 16,
                "patch_size": 8,
                "projection_dim": 16,
            },
        },
    }[family]
    vq = configs(transformers)[family]().to_dict()
    config = getattr(transformers, f"{family}Config")(vq_config=vq, **kwargs)
    torch.manual_seed(0)
    whole = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    whole.to(torch.bfloat16).save_pretrained(tmp_path)
    tokenizer = TransformersVQ(str(tmp_path))
    assert {p.dtype for p in tokenizer.model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in tokenizer.model.parameters()) < sum(
        p.numel() for p in whole.parameters()
    )
    part = whole.model.vqmodel.float().state_dict()
    assert all(v.equal(part[k]) for k, v in tokenizer.model.state_dict().items())
    assert tokenizer.encode(images()).shape == (3, 4, 6)


def test_what_is_no_vq_model_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"`model='.*empty'` (cannot be loaded|is no VQ model)"):
        TransformersVQ(str(tmp_path / "empty"))
    config = transformers.ViTConfig(hidden_size=12, num_hidden_layers=1, intermediate_size=8)
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    with pytest.raises(ValueError, match=r"is no VQ model \(ViTModel\): expected one of"):
        TransformersVQ(str(tmp_path / "vit"))
    if hasattr(transformers, "GlmImageVQVAE"):
        config = transformers.GlmImageVQVAEConfig(embed_dim=4, num_embeddings=5, latent_channels=4)
        transformers.GlmImageVQVAE(config).save_pretrained(tmp_path / "glm")
        with pytest.raises(ValueError, match="expected a model that encodes images by itself"):
            TransformersVQ(str(tmp_path / "glm"))


def test_missing_weights_are_an_error(tmp_path):
    model = save_vq(tmp_path)
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("quantize")}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match=r"lacks 1 weights .* quantize\.embedding\.weight\."):
        TransformersVQ(str(tmp_path))


# ------------------------------------------------------------------ diffusers


def test_tokens_of_diffusers(tmp_path):
    model = save_diffusers(tmp_path / "vqvae")
    for tokenizer in (
        DiffusersVQ(str(tmp_path / "vqvae"), device="cpu"),
        DiffusersVQ(str(tmp_path), subfolder="vqvae"),
    ):
        tokens = tokenize(lambda: images().split(2), tokenizer)
        assert tokens.shape == (3, 4, 6)
        assert tokens.flatten().tolist() == direct(model, images() * 2 - 1).tolist()
    assert tokenizer.num_codes == 17


def test_value_range_of_diffusers(tmp_path):
    model = save_diffusers(tmp_path)
    tokens = DiffusersVQ(str(tmp_path), value_range=(0.0, 3.0)).encode(images())
    assert tokens.flatten().tolist() == direct(model, images() * 3).tolist()
    with pytest.raises(ValueError, match="two values in `value_range`"):
        DiffusersVQ(str(tmp_path), value_range=(1.0, 1.0))


def test_what_is_no_vq_model_of_diffusers(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"`model='.*empty'` cannot be loaded.*`subfolder`"):
        DiffusersVQ(str(tmp_path / "empty"))
    diffusers.AutoencoderKL(block_out_channels=[32]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is no VQ model \(AutoencoderKL\): expected diffusers'"):
        DiffusersVQ(str(tmp_path))


@pytest.mark.parametrize(
    ("package", "cls"), [("transformers", TransformersVQ), ("diffusers", DiffusersVQ)]
)
def test_missing_package_names_the_extra(monkeypatch, package, cls):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"needs {package}: .*reorder-lightning\[vq\]"):
        cls("anything")
