"""Models of torchvision, in images as small as their architecture allows.

Inception-V3 stays as large as it is: its widths are written into it, and its auxiliary head needs
images of 299 x 299.
"""

from __future__ import annotations

from torch import nn
from torchvision import models
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.resnet import Bottleneck

from benchmarks.zoo.entry import Entry, images


def small_resnet() -> nn.Module:
    """One block a stage, of half the width."""
    return models.ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10, width_per_group=32)


def inception() -> nn.Module:
    """Inception-V3, whose auxiliary head is part of the training output only."""
    return models.inception_v3(weights=None, num_classes=10, init_weights=False)


def vit() -> nn.Module:
    """ViT-B/16; its head starts at zero, behind which nothing would get a gradient."""
    return _with_head(models.vit_b_16(image_size=64, num_classes=10, dropout=0.1))


def small_vit() -> nn.Module:
    """Four layers of width 64."""
    return _with_head(
        models.VisionTransformer(
            image_size=64, patch_size=16, num_layers=4, num_heads=4, hidden_dim=64, mlp_dim=256,
            num_classes=10, dropout=0.1,
        )
    )  # fmt: skip


def _with_head(model: models.VisionTransformer) -> nn.Module:
    nn.init.normal_(model.heads.head.weight, std=0.02)
    return model


def convnext() -> nn.Module:
    """ConvNeXt-Tiny; its blocks start at a millionth of their strength, here at half."""
    return models.convnext_tiny(num_classes=10, layer_scale=0.5)


def small_convnext() -> nn.Module:
    """Four stages of 16 to 128 channels."""
    blocks = [CNBlockConfig(16 << i, 32 << i if i < 3 else None, 1 + i // 2) for i in range(4)]
    return models.ConvNeXt(blocks, num_classes=10, layer_scale=0.5)


ENTRIES = (
    Entry(
        "torchvision ResNet-50",
        lambda: models.resnet50(num_classes=10),
        images(3, 64),
        build_small=small_resnet,
    ),
    Entry("torchvision Inception-V3", inception, images(3, 299), batch=3, other_batch=2),
    Entry("torchvision ViT-B/16", vit, images(3, 64), build_small=small_vit),
    Entry("torchvision ConvNeXt", convnext, images(3, 64), build_small=small_convnext),
)
