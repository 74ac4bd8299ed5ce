"""Models of torchvision, in images as small as their architecture allows."""

from __future__ import annotations

from torch import nn
from torchvision import models

from benchmarks.zoo.entry import Entry, images


def inception() -> nn.Module:
    """Inception-V3, whose auxiliary head is part of the training output only."""
    return models.inception_v3(weights=None, num_classes=10, init_weights=False)


def vit() -> nn.Module:
    """ViT-B/16; its head starts at zero, behind which nothing would get a gradient."""
    model = models.vit_b_16(image_size=64, num_classes=10, dropout=0.1)
    nn.init.normal_(model.heads.head.weight, std=0.02)
    return model


def convnext() -> nn.Module:
    """ConvNeXt-Tiny; its blocks start at a millionth of their strength, here at half."""
    return models.convnext_tiny(num_classes=10, layer_scale=0.5)


ENTRIES = (
    Entry("torchvision ResNet-50", lambda: models.resnet50(num_classes=10), images(3, 64)),
    Entry("torchvision Inception-V3", inception, images(3, 299), batch=3, other_batch=2),
    Entry("torchvision ViT-B/16", vit, images(3, 64)),
    Entry("torchvision ConvNeXt", convnext, images(3, 64)),
)
