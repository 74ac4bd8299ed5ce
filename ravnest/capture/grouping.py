"""A grouped matrix product that leaves no memory uninitialised, whatever its offsets are.

torch's own leaves the rows behind the last offset as it found them, in the result and in the
gradient of its input; and the offsets are data, which a stranger's stage file chooses.
"""

from __future__ import annotations

import torch


def grouped_product(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`aten::_grouped_mm` with zeros in the rows of no group.

    Args:
        self: (rows, K), sorted by group.
        mat2: (groups, K, N), one matrix per group.
        offs: (groups,) int32, the end of each group's rows; what goes back or past the end is
            brought to the nearest end that does not.

    Raises:
        ValueError: other ranks together with offsets; what they leave unwritten is not known.
    """
    product = torch.ops.aten._grouped_mm.default
    if offs is None:
        whole: torch.Tensor = product(self, mat2, None, bias, out_dtype)
        return whole
    if self.dim() != 2 or mat2.dim() != 3:
        raise ValueError(
            f"a grouped product of {self.dim()} by {mat2.dim()} dimensions, expected 2 by 3"
        )
    ends = offs.clamp(0, self.shape[0]).cummax(0).values.to(offs.dtype)
    unreached = (torch.arange(self.shape[0], device=self.device) >= ends[-1]).unsqueeze(1)
    result: torch.Tensor = product(self.masked_fill(unreached, 0), mat2, ends, bias, out_dtype)
    return result.masked_fill(unreached, 0)
