"""One process that sums a shared parameter's gradients use by use, as stages have to.

In one process a gradient of a parameter with several uses is a running sum over the microbatches,
each of which adds what all uses give. Stages that share it sum the microbatches of their own uses
first and then add the sums, so that it crosses the network once per step and not once per
microbatch. In exact arithmetic that is the same sum; in bfloat16 it rounds differently, by as much
as it errs in either order, and 20 steps make several per cent of it. Here the original model is
trained in the second order, by plain PyTorch: what then remains is no longer rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch

Uses = dict[str, list[list[tuple[str, str]]]]
"""By shared parameter: per stage, in order, which attributes of which modules are its uses."""


def dealings_of_uses(
    model: torch.nn.Module, called: Sequence[str], num_users: Mapping[str, int]
) -> Iterator[Uses]:
    """Every way in which stages can share the uses of shared parameters, in order of call.

    Args:
        called: names of the model's modules in the order of their first call.
        num_users: by shared parameter, the number of stages that use it. One with fewer uses as an
            attribute (a module that several stages call) is left as it is.
    """
    ranks = {name: rank for rank, name in enumerate(called)}
    choices: list[list[list[list[tuple[str, str]]]]] = []
    names = [name for name, users in num_users.items() if users > 1]
    for name in names:
        uses = [(m, a) for m, a in _attributes(model, model.get_parameter(name)) if m in ranks]
        uses.sort(key=lambda use: ranks[use[0]])
        cuts = itertools.combinations(range(1, len(uses)), num_users[name] - 1)
        choices.append(
            [[uses[a:b] for a, b in itertools.pairwise((0, *places, len(uses)))] for places in cuts]
            or [[uses]]
        )
    for chosen in itertools.product(*choices):
        yield dict(zip(names, chosen, strict=True))


def modules_called(model: torch.nn.Module, *args: object, **kwargs: object) -> list[str]:
    """Names of a model's modules in the order of their first call."""
    called: dict[str, None] = {}
    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: called.setdefault(name))
        for name, module in model.named_modules()
    ]
    model(*args, **kwargs)
    for handle in handles:
        handle.remove()
    return list(called)


class UsesApart:
    """Gives every stage's uses of a shared parameter a parameter of their own.

    Args:
        model: changed in place; its optimizer must not get the parameters of later stages.
    """

    def __init__(self, model: torch.nn.Module, uses: Uses) -> None:
        self._replicas: list[tuple[torch.nn.Parameter, list[torch.nn.Parameter]]] = []
        for name, stages in uses.items():
            owned = model.get_parameter(name)
            replicas = [torch.nn.Parameter(owned.detach().clone()) for _ in stages[1:]]
            for replica, places in zip(replicas, stages[1:], strict=True):
                for module, attribute in places:
                    setattr(model.get_submodule(module), attribute, replica)
            self._replicas.append((owned, replicas))

    def gather(self) -> None:
        """Adds the sums of all stages; before the optimizer's step."""
        for owned, replicas in self._replicas:
            for replica in replicas:
                if replica.grad is not None:
                    own = owned.grad
                    owned.grad = replica.grad if own is None else replica.grad + own
                    replica.grad = None

    def spread(self) -> None:
        """Gives all uses the values of the first; after the step."""
        with torch.no_grad():
            for owned, replicas in self._replicas:
                for replica in replicas:
                    replica.copy_(owned)


def _attributes(model: torch.nn.Module, parameter: torch.nn.Parameter) -> Iterator[tuple[str, str]]:
    for module_name, module in model.named_modules():
        for attribute, value in module.named_parameters(recurse=False):
            if value is parameter:
                yield module_name, attribute
