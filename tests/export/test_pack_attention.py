"""Networks of tokens made of images, and gated ones: against torch, with the size summary says."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import surge
from surge.errors import ExportError
from surge.export import pack
from tests.export.packing import assert_close, expected, packed_output, settle

transformers = pytest.importorskip("transformers")


class Fused(nn.Module):
    """Queries, keys and values from one layer, as in timm."""

    def __init__(self, size, heads, *, by_index):
        super().__init__()
        self.heads, self.by_index = heads, by_index
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)

    def forward(self, x):
        n, t, size = x.shape
        parts = self.qkv(x).reshape(n, t, 3, self.heads, size // self.heads).permute(2, 0, 3, 1, 4)
        if self.by_index:
            mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[-1])
        else:
            q, k, v = parts.unbind(0)
            scores = (q * 0.3) @ k.transpose(-2, -1)
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(n, t, size))


class Torchs(nn.Module):
    """torch's own attention."""

    def __init__(self, size, heads, **options):
        super().__init__()
        self.inner = nn.MultiheadAttention(size, heads, **{"batch_first": True, **options})

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


class Patches(nn.Module):
    """A small vision transformer around an attention."""

    def __init__(self, size, attention):
        super().__init__()
        self.patches = nn.Conv2d(3, size, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 2, size))
        self.places = nn.Parameter(0.1 * torch.randn(1, 11, size))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))
        self.attention = attention
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.PReLU(), nn.Linear(2 * size, size))
        self.head = nn.Linear(size, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.places
        x = x + self.attention(self.norms[0](x))
        x = x + self.mlp(self.norms[1](x))
        return self.head(self.norms[2](x)[:, 0])


ATTENTIONS = {
    "fused": lambda size, heads: Fused(size, heads, by_index=False),
    "fused by index": lambda size, heads: Fused(size, heads, by_index=True),
    "torchs": Torchs,
    "torchs without biases": lambda size, heads: Torchs(size, heads, bias=False),
}


@pytest.mark.parametrize("method", [None, "reactnet", "bnn"])
@pytest.mark.parametrize(("size", "heads"), [(40, 2), (36, 4), (32, 1)])
@pytest.mark.parametrize("kind", ATTENTIONS)
def test_attention_of_real_numbers_is_torchs(engine, tmp_path, kind, size, heads, method):
    torch.manual_seed(0)
    model, x = Patches(size, ATTENTIONS[kind](size, heads)), torch.randn(3, 3, 12, 12)
    if method:
        surge.binarize_(model, method)
    actual = packed_output(engine, model.eval(), x, tmp_path / "m.surge")
    assert_close(actual, expected(model, x))


def test_attention_is_as_it_was_after_packing(tmp_path):
    model, x = Patches(32, Torchs(32, 4)).eval(), torch.randn(2, 3, 12, 12)
    before = expected(model, x)
    fast = torch.backends.mha.get_fastpath_enabled()
    pack(model, x, tmp_path / "m.surge")
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert "forward" not in vars(model.attention.inner)
    assert (expected(model, x) == before).all()


def test_encoder_of_torch_packs(engine, tmp_path):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Linear(6, 32), encoder, nn.Flatten(), nn.Linear(160, 3)).eval()
    x = torch.randn(3, 5, 6)
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), expected(model, x))


@pytest.mark.parametrize("options", [{"batch_first": False}, {"add_zero_attn": True}])
def test_other_attentions_of_torch_are_refused_by_name(tmp_path, options):
    model = Patches(32, Torchs(32, 4, **options)).eval()
    with pytest.raises(ExportError, match=r'"attention\.inner" \(MultiheadAttention\) must attend'):
        pack(model, torch.zeros(1, 3, 12, 12), tmp_path / "m.surge")


VIT = {
    "hidden_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "intermediate_size": 64,
    "image_size": 24,
    "patch_size": 8,
}
WIDTHS = {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]}
HEADS = {"num_attention_heads": [1, 1, 2, 2]}
STOCK = {
    "ViT": VIT,
    "DeiT": VIT,
    "Beit": VIT,
    "ConvNext": WIDTHS,
    "ConvNextV2": WIDTHS,
    "RegNet": {**WIDTHS, "embedding_size": 16, "groups_width": 8, "layer_type": "y"},
    "PoolFormer": WIDTHS,
    "Segformer": {**WIDTHS, **HEADS},
    "PvtV2": {**WIDTHS, **HEADS, "image_size": 32},
    "MobileNetV2": {"depth_multiplier": 0.25},
    "EfficientNet": {"width_coefficient": 0.25, "depth_coefficient": 0.2, "hidden_dim": 320},
}


@pytest.mark.parametrize("name", STOCK)
def test_image_models_of_transformers_pack(engine, tmp_path, name):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(num_labels=5, **STOCK[name])
    model = getattr(transformers, f"{name}ForImageClassification")(config)
    x = torch.randn(3, 3, *[config.image_size if name in ("ViT", "DeiT", "Beit") else 32] * 2)
    surge.binarize_(model, "reactnet")  # its shifts keep values away from the -0 of a GELU
    model = settle(model, x)
    wanted = expected(lambda x: model(x).logits, x)
    assert wanted.std(axis=0).max() > 1e-6, "all samples alike would prove nothing"
    assert_close(packed_output(engine, model, x, tmp_path / "m.surge"), wanted)
    packed = pack(model, x, tmp_path / "m.surge")
    assert packed.tensor_bytes + packed.folded_bytes == surge.summary(model, x[:1]).bytes
