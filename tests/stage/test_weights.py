"""Weight versions: stashed by reference, copied only when needed, summed as autograd sums."""

from __future__ import annotations

import torch

from ravnest.stage.weights import WeightVersions


def linear() -> tuple[torch.nn.Parameter, torch.optim.Optimizer, WeightVersions]:
    parameter = torch.nn.Parameter(torch.tensor([2.0, -1.0]))
    return parameter, torch.optim.SGD([parameter], lr=0.1), WeightVersions({"w": parameter})


def step(optimizer: torch.optim.Optimizer, versions: WeightVersions) -> None:
    versions.begin_update()
    optimizer.step()
    optimizer.zero_grad()
    versions.end_update()


def test_backward_uses_the_weights_of_its_forward_pass() -> None:
    parameter, optimizer, versions = linear()
    x = torch.tensor([3.0, 5.0], requires_grad=True)
    old = versions.acquire()
    loss = (old.tensors["w"] * x).sum()
    parameter.grad = torch.ones(2)
    step(optimizer, versions)
    assert parameter.tolist() == [1.899999976158142, -1.100000023841858]
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, -1.0], "the gradient must come from the stashed weights"
    assert versions.num_stashed == 1
    versions.release(old)
    assert versions.num_stashed == 0
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [3.0, 5.0]


def test_nothing_is_copied_without_microbatches_in_flight() -> None:
    parameter, optimizer, versions = linear()
    before = parameter.data_ptr()
    version = versions.acquire()
    (version.tensors["w"].sum() * 2).backward()
    versions.release(version)
    step(optimizer, versions)
    assert parameter.data_ptr() == before
    assert versions.acquire() is version
    assert version.number == 1


def test_a_step_copies_only_what_it_changes() -> None:
    trained = torch.nn.Parameter(torch.tensor([2.0]))
    frozen = torch.nn.Parameter(torch.tensor([5.0]), requires_grad=False)
    versions = WeightVersions({"trained": trained, "frozen": frozen})
    first = versions.acquire()
    place = frozen.data_ptr()
    before = versions.begin_step()
    trained.data.fill_(3.0)
    versions.end_update()
    assert before is not None
    assert before["trained"].tolist() == first.tensors["trained"].tolist() == [2.0]
    assert frozen.data_ptr() == place
    assert versions.begin_step() is None, "nothing awaits gradients of the newest version"
    versions.end_update()
    versions.overwrite({"trained": torch.tensor([4.0]), "frozen": torch.tensor([6.0])})
    assert {name: each.item() for name, each in first.tensors.items()} == {
        "trained": 2.0,
        "frozen": 5.0,
    }
    assert versions.current()["frozen"].tolist() == [6.0]
    versions.release(first)
    assert versions.num_stashed == 0


def test_gradients_add_up_like_repeated_backward() -> None:
    parameter, _, versions = linear()
    twin = torch.nn.Parameter(parameter.detach().clone())
    torch.manual_seed(0)
    for _ in range(5):
        x = torch.randn(2)
        version = versions.acquire()
        (version.tensors["w"] * x).sum().backward()
        versions.release(version)
        (twin * x).sum().backward()
    assert parameter.grad is not None
    assert twin.grad is not None
    assert torch.equal(parameter.grad, twin.grad)


def test_an_optimizer_that_replaces_storage_is_followed() -> None:
    parameter, _, versions = linear()
    versions.begin_update()
    parameter.data = torch.tensor([7.0, 8.0])
    versions.end_update()
    assert versions.current()["w"].tolist() == [7.0, 8.0]


def test_gradients_of_another_stage_add_up_whatever_their_layout() -> None:
    parameter, _, versions = linear()
    versions.add_gradients({"w": torch.tensor([1.0, 2.0])})
    versions.add_gradients({"w": torch.tensor([3.0, 4.0])})
    assert versions.take_gradients(["w"])["w"].tolist() == [4.0, 6.0]
    assert parameter.grad is None
    assert versions.take_gradients(["w"]) == {}
    parameter.grad = torch.tensor([0.0, 5.0]).to_sparse()
    versions.add_gradients({"w": torch.tensor([1.0, 1.0])})
    assert versions.take_gradients(["w"])["w"].tolist() == [1.0, 6.0]


def test_other_values_are_a_version_of_their_own() -> None:
    parameter, _, versions = linear()
    old = versions.acquire()
    copies = versions.copies(["w"])
    versions.overwrite({"w": torch.tensor([7.0, 8.0])})
    assert (versions.number, versions.num_stashed) == (1, 1)
    assert old.tensors["w"].tolist() == copies["w"].tolist() == [2.0, -1.0]
    assert parameter.tolist() == versions.current()["w"].tolist() == [7.0, 8.0]
    versions.release(old)
    assert versions.num_stashed == 0
