"""The operators a stage file may contain; everything else is refused in writing and in loading.

The list is deny-by-default because a stage file comes from a stranger. Left out on purpose: what
opens files or storages (`from_file`, `set_`, `resize_`), what skips bounds checks (`_unsafe_index`,
`_embedding_bag` internals), all but one `out=` variant, and everything that reveals an address.
Uninitialised memory (`empty`, rows of no group) is loaded as zeros, so that no provider's memory
can leak through an output.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

import torch

from ravnest.capture.grouping import grouped_product

_ELEMENTWISE = """
abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2
arctanh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or
bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min clip conj conj_physical copysign cos
cosh deg2rad digamma div divide eq erf erfc erfinv exp exp2 expm1 fill fix float_power floor
floor_divide fmax fmin fmod frac gcd ge greater greater_equal gt heaviside hypot i0 igamma igammac
imag isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le lerp less less_equal lgamma
log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt
maximum minimum mul multiply mvlgamma nan_to_num ne neg negative nextafter not_equal polar polygamma
positive pow rad2deg real reciprocal remainder round rsqrt rsub sgn sigmoid sign signbit sin sinc
sinh special_digamma special_entr special_erf special_erfc special_erfcx special_erfinv special_exp2
special_expit special_expm1 special_gammaln special_i0 special_i0e special_i1 special_i1e
special_log1p special_log_ndtr special_logit special_ndtr special_ndtri special_polygamma
special_round special_sinc special_xlog1py special_xlogy special_zeta sqrt square sub subtract tan
tanh true_divide trunc xlogy __and__ __iand__ __or__ __ior__ __xor__ __ixor__ __lshift__ __rshift__
complex
"""

_ACTIVATIONS = """
celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid log_softmax mish
prelu relu relu6 rrelu selu silu softmax softplus softshrink special_log_softmax special_softmax
threshold _softmax _log_softmax _safe_softmax _prelu_kernel
"""

_REDUCTIONS = """
all amax amin aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum
cumulative_trapezoid diff dist frobenius_norm kthvalue logcumsumexp logsumexp max mean median min
mode nanmean nanmedian nanquantile nansum norm norm_except_dim nuclear_norm prod quantile
special_logsumexp std std_mean sum sum_to_size trapezoid trapz var var_mean equal allclose corrcoef
cov bincount histc
"""

_LINEAR_ALGEBRA = """
addbmm addmm addmv addr baddbmm bilinear bmm cdist chain_matmul cholesky cholesky_inverse
cholesky_solve cosine_similarity cross det dot einsum ger inner inverse kron linalg_cholesky
linalg_cholesky_ex linalg_cond linalg_cross linalg_det linalg_diagonal linalg_eig linalg_eigh
linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq
linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve linalg_matmul linalg_matrix_exp
linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_multi_dot linalg_norm linalg_pinv
linalg_qr linalg_slogdet linalg_solve linalg_solve_ex linalg_solve_triangular linalg_svd
linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot linalg_vector_norm
linear logdet matmul matrix_exp matrix_power mm mv outer pairwise_distance pdist pinverse qr renorm
slogdet svd tensordot trace triangular_solve vander vdot _grouped_mm _trilinear _weight_norm
_weight_norm_interface
"""

_CONVOLUTION_AND_POOLING = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d conv1d conv2d conv3d conv_tbc conv_transpose1d
conv_transpose2d conv_transpose3d convolution _convolution _convolution_mode _adaptive_avg_pool2d
_adaptive_avg_pool3d fractional_max_pool2d fractional_max_pool3d max_pool1d max_pool1d_with_indices
max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool2d max_unpool3d
col2im im2col affine_grid_generator grid_sampler grid_sampler_2d grid_sampler_3d pixel_shuffle
pixel_unshuffle channel_shuffle native_channel_shuffle upsample_bicubic2d upsample_bilinear2d
upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d
"""

_NORMALIZATION = """
batch_norm group_norm instance_norm layer_norm rms_norm native_batch_norm native_group_norm
native_layer_norm _native_batch_norm_legit _native_batch_norm_legit_no_training _fused_rms_norm
"""

_ATTENTION_AND_RECURRENCE = """
scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _transform_bias_rescale_qkv
gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell _pack_padded_sequence
_pad_packed_sequence embedding embedding_bag embedding_renorm one_hot
"""

_LOSSES = """
binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss
ctc_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss
multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d nll_loss_nd nll_loss_forward
nll_loss2d_forward poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
"""

_SHAPES = """
adjoint alias as_strided atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors broadcast_to
cartesian_prod cat chunk clone column_stack combinations concat concatenate constant_pad_nd
contiguous copy detach diag diag_embed diagflat diagonal dsplit dstack expand expand_as flatten flip
fliplr flipud hsplit hstack mH mT matrix_H meshgrid moveaxis movedim narrow numpy_T pad pad_sequence
permute ravel reflection_pad1d reflection_pad2d reflection_pad3d repeat repeat_interleave
replication_pad1d replication_pad2d replication_pad3d reshape reshape_as resolve_conj resolve_neg
roll rot90 row_stack select select_scatter slice slice_scatter diagonal_scatter split
split_with_sizes squeeze stack swapaxes swapdims t tensor_split tile transpose tril triu unbind
unflatten unfold unsqueeze unsafe_chunk unsafe_split unsafe_split_with_sizes view view_as
view_as_complex view_as_real vsplit vstack _unsafe_view _reshape_alias _pad_enum _pad_circular
"""

_INDEXING = """
argsort argwhere bucketize gather index index_add index_copy index_fill index_put index_reduce
index_select isin masked_fill masked_scatter masked_select msort nonzero nonzero_numpy
nonzero_static put scatter scatter_add scatter_reduce searchsorted sort take take_along_dim topk
unique_consecutive unique_dim _unique2 where fill_diagonal_ tril_indices triu_indices
"""

_FACTORIES_AND_CASTS = """
arange empty empty_like eye full full_like linspace logspace new_empty new_full new_ones new_zeros
ones ones_like scalar_tensor zeros zeros_like zero lift_fresh lift_fresh_copy to type_as _to_copy
_cast_Double _cast_Float _cast_Half _cast_Int _cast_Long bartlett_window blackman_window
hamming_window hann_window kaiser_window
"""

_RANDOM = """
alpha_dropout bernoulli binomial cauchy dropout exponential feature_alpha_dropout feature_dropout
geometric log_normal multinomial native_dropout normal poisson rand rand_like randint randint_like
randn randn_like random randperm rrelu_with_noise uniform _sample_dirichlet _standard_gamma
"""

_SIGNALS = """
fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2
fft_ifftn fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft
fft_rfft2 fft_rfftfreq fft_rfftn istft stft
"""

_SIZES = """
sym_size sym_numel sym_stride item _local_scalar_dense _assert_scalar _assert_async _shape_as_tensor
is_nonzero
"""

_PYTHON = """
add sub mul truediv floordiv mod neg pos abs pow eq ne lt le gt ge and_ or_ not_ xor getitem
"""

_SYMBOLIC = """
sym_int sym_float sym_max sym_min sym_not sym_ite sym_sum _sym_sqrt _sym_log2
"""

_FAMILIES = (
    _ELEMENTWISE,
    _ACTIVATIONS,
    _REDUCTIONS,
    _LINEAR_ALGEBRA,
    _CONVOLUTION_AND_POOLING,
    _NORMALIZATION,
    _ATTENTION_AND_RECURRENCE,
    _LOSSES,
    _SHAPES,
    _INDEXING,
    _FACTORIES_AND_CASTS,
    _RANDOM,
    _SIGNALS,
    _SIZES,
)
# The in-place variant of a listed operator is listed too, unless it changes a tensor's storage.
_NOT_IN_PLACE = frozenset({"set", "resize", "resize_as", "as_strided"})
_BASE = frozenset(name for family in _FAMILIES for name in family.split())

ATEN: Final = _BASE | {f"{name}_" for name in _BASE - _NOT_IN_PLACE if not name.endswith("_")}

PYTHON: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(operator, name) for name in _PYTHON.split()
}
MATH: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")
}
SYMBOLIC: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(torch, name) for name in _SYMBOLIC.split() if hasattr(torch, name)
}
_TABLES = {"operator": PYTHON, "math": MATH, "sym": SYMBOLIC}

_ZEROED: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    torch.ops.aten.empty.memory_format: torch.ops.aten.zeros.default,
    torch.ops.aten.empty_like.default: torch.ops.aten.zeros_like.default,
    torch.ops.aten.new_empty.default: torch.ops.aten.new_zeros.default,
    torch.ops.aten._grouped_mm.default: grouped_product,
}


_OUT_VARIANTS = frozenset({"aten::div.out"})  # spectral norm updates its vectors with it
_LEAVES_MEMORY = frozenset({"empty", "empty_like", "new_empty"})


def name_of(target: Any) -> str | None:
    """The portable name of an allowed operator (`aten::add.Tensor`, `operator::mul`), else None."""
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace != "aten":
            return None
        packet = target._schema.name.partition("::")[2]
        name = f"aten::{packet}.{target._overloadname}"
        return name if find(name) is target else None
    for table, members in _TABLES.items():
        for name, function in members.items():
            if target is function:
                return f"{table}::{name}"
    return None


def find(name: str) -> Callable[..., Any] | None:
    """The operator of a portable name, or None when it is not allowed or unknown to this torch."""
    table, separator, rest = name.partition("::")
    if not separator:
        return None
    if table in _TABLES:
        return _TABLES[table].get(rest)
    packet, dot, overload = rest.partition(".")
    if table != "aten" or not dot or packet not in ATEN:
        return None
    overloads = getattr(torch.ops.aten, packet, None)
    if overloads is None or overload not in overloads.overloads():
        return None
    found: Callable[..., Any] = getattr(overloads, overload)
    writes_out = any(argument.is_out for argument in found._schema.arguments)  # type: ignore[attr-defined]
    if writes_out and name not in _OUT_VARIANTS:
        return None
    # Another empty overload than those with a zeroed twin would reveal memory.
    return None if packet in _LEAVES_MEMORY and found not in _ZEROED else found


def initialised(target: Callable[..., Any]) -> Callable[..., Any]:
    """The operator to run instead, which fills with zeros what this one leaves uninitialised."""
    if not isinstance(target, torch._ops.OpOverload):
        return target
    return _ZEROED.get(target, target)
