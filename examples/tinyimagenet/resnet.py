"""ResNet-18 and ResNet-50, with torchvision's parameter names."""

import torch
from torch import nn


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Basic(nn.Module):
    """Two 3×3 convolutions with a skip connection."""

    widening = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + around)


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1 convolutions, with a skip connection."""

    widening = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        outputs = width * self.widening
        self.conv1, self.bn1 = _convolution(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _convolution(width, outputs, 1), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.bn3(self.conv3(x)) + around)


class ResNet(nn.Module):
    """Four stages of blocks, each with half the resolution and twice the width of the last."""

    def __init__(self, block: type[Basic | Bottleneck], depths: list[int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self._inputs = 64
        self.layer1 = self._stage(block, 64, depths[0], stride=1)
        self.layer2 = self._stage(block, 128, depths[1], stride=2)
        self.layer3 = self._stage(block, 256, depths[2], stride=2)
        self.layer4 = self._stage(block, 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.widening, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def _stage(
        self, block: type[Basic | Bottleneck], width: int, depth: int, *, stride: int
    ) -> nn.Sequential:
        outputs = width * block.widening
        downsample = None
        if stride != 1 or self._inputs != outputs:
            downsample = nn.Sequential(
                _convolution(self._inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )
        blocks = [block(self._inputs, width, stride, downsample)]
        blocks += [block(outputs, width, 1, None) for _ in range(depth - 1)]
        self._inputs = outputs
        return nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet18(classes: int) -> ResNet:
    return ResNet(Basic, [2, 2, 2, 2], classes)


def resnet50(classes: int) -> ResNet:
    return ResNet(Bottleneck, [3, 4, 6, 3], classes)
