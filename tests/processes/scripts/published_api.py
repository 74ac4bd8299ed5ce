"""A provider script that uses only the published API, with a trainer of its own."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, set_seed

set_seed(42)


def preprocess_dataset():
    generator = torch.Generator()
    generator.manual_seed(42)
    data = torch.Generator().manual_seed(1)
    x = torch.randn(96, 3, 8, 8, generator=data)
    y = torch.randint(0, 5, (96,), generator=data)
    dataset = TensorDataset(x, y)
    train_loader = DataLoader(dataset, batch_size=16, shuffle=True, generator=generator)
    val_loader = DataLoader(dataset, batch_size=32)
    return train_loader, val_loader


def loss_fn(predictions, targets):
    return torch.nn.functional.cross_entropy(predictions, targets[1])


class CustomTrainer(Trainer):
    def train(self):
        self.prelim_checks()
        assert self.node.node_type == "root", "the body must run on the root alone"
        for _ in range(self.epochs):
            for x, _ in self.train_loader:
                self.node.forward_compute(tensors=x)
            self.node.wait_for_backwards()
            self.node.update_with_latest_weights()
            for x, _ in self.val_loader:
                self.node.no_grad_forward_compute(tensors=x, output_type="val_accuracy")
        self.node.trigger_save_submodel()
        assert self.node.n_forwards == self.node.n_backwards == 12


if __name__ == "__main__":
    train_loader, val_loader = preprocess_dataset()
    node = Node(
        name=sys.argv[1],
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": 0.001},
        criterion=loss_fn,
        labels=train_loader,
        test_labels=val_loader,
        device=torch.device("cpu"),
    )
    trainer = CustomTrainer(node=node, train_loader=train_loader, val_loader=val_loader, epochs=2)
    trainer.train()
    metrics = trainer.evaluate()
    assert set(metrics) == {"accuracy", "num_samples"}, metrics
    assert metrics["num_samples"] == 96
    prediction = trainer.pred(torch.zeros(2, 3, 8, 8))
    assert (prediction is None) == (node.node_type != "root")
