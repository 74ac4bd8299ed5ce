"""Models of transformers, in small configurations with weights of their own making."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn

from benchmarks.zoo.entry import NUM_TOKENS, Call, Entry, kept, tokens

WIDTH = 32
DECODER: dict[str, Any] = {
    "vocab_size": NUM_TOKENS,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def gpt2() -> nn.Module:
    """GPT-2: tied embedding, dropout everywhere."""
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=NUM_TOKENS, n_positions=64, n_embd=WIDTH, n_layer=3, n_head=4,
            use_cache=False, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def llama() -> nn.Module:
    """Llama: grouped queries and rotary positions."""
    return hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER))


def qwen2() -> nn.Module:
    """Qwen2 with tied embedding."""
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**DECODER, tie_word_embeddings=True))


def gemma2() -> nn.Module:
    """Gemma2: soft-capped logits, windows on every other layer, tied embedding."""
    return hf.Gemma2ForCausalLM(hf.Gemma2Config(**DECODER, head_dim=8, sliding_window=8))


def mixtral() -> nn.Module:
    """Mixtral: sparse experts."""
    config = hf.MixtralConfig(**DECODER, num_local_experts=4, num_experts_per_tok=2)
    return hf.MixtralForCausalLM(config)


def bert() -> nn.Module:
    """BERT for pretraining: keyword inputs and two outputs."""
    return hf.BertForPreTraining(
        hf.BertConfig(
            vocab_size=NUM_TOKENS, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=3,
            num_attention_heads=4, max_position_embeddings=64,
        )
    )  # fmt: skip


def distilbert() -> nn.Module:
    """DistilBERT that computes its own loss."""
    return hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(
            vocab_size=NUM_TOKENS, dim=WIDTH, hidden_dim=64, n_layers=3, n_heads=4,
            max_position_embeddings=64, num_labels=3,
        )
    )  # fmt: skip


def t5() -> nn.Module:
    """T5: encoder and decoder with one embedding."""
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=NUM_TOKENS, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=2,
            num_decoder_layers=2, num_heads=4, use_cache=False, decoder_start_token_id=0,
            tie_word_embeddings=True,
        )
    )  # fmt: skip


def whisper() -> nn.Module:
    """Whisper: sound in, tokens out."""
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(
            vocab_size=NUM_TOKENS, num_mel_bins=8, d_model=WIDTH, encoder_layers=2,
            decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=20,
            max_target_positions=64, use_cache=False, dropout=0.1, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None,
            suppress_tokens=None,
        )
    )  # fmt: skip


def vit() -> nn.Module:
    """ViT for images of 32 x 32."""
    return hf.ViTForImageClassification(
        hf.ViTConfig(
            hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
            image_size=32, patch_size=8, num_labels=5, hidden_dropout_prob=0.1,
        )
    )  # fmt: skip


def _masked(batch: int, length: int) -> Call:
    return (), {"input_ids": tokens(batch, length), "attention_mask": kept(batch, length)}


def _with_labels(batch: int, length: int) -> Call:
    args, kwargs = _masked(batch, length)
    return args, {**kwargs, "labels": torch.randint(0, 3, (batch,))}


def _pretraining(batch: int, length: int) -> Call:
    args, kwargs = _masked(batch, length)
    return args, {**kwargs, "token_type_ids": torch.randint(0, 2, (batch, length))}


def _translated(batch: int, length: int) -> Call:
    args, kwargs = _masked(batch, length)
    # With no padding said, the decoder takes a way that it does not take when it is captured; the
    # gradient of its position bias is then summed over the batch at another place.
    decoder = {
        "decoder_input_ids": tokens(batch, length - 3),
        "decoder_attention_mask": kept(batch, length - 3),
    }
    return args, {**kwargs, **decoder}


def _heard(batch: int, length: int) -> Call:
    features = torch.randn(batch, 8, 40)
    return (), {"input_features": features, "decoder_input_ids": tokens(batch, length)}


def _seen(batch: int, _: int) -> Call:
    return (), {"pixel_values": torch.randn(batch, 3, 32, 32)}


def _entry(name: str, build: Callable[[], nn.Module], call: Callable[[int, int], Call]) -> Entry:
    return Entry(f"transformers {name}", build, call, other_length=16)


ENTRIES = (
    _entry("GPT-2", gpt2, _masked),
    _entry("Llama", llama, _masked),
    _entry("BERT for pretraining", bert, _pretraining),
    _entry("T5", t5, _translated),
    _entry("Mixtral", mixtral, _masked),
    _entry("Qwen2", qwen2, _masked),
    _entry("Gemma2", gemma2, _masked),
    _entry("Whisper", whisper, _heard),
    Entry("transformers ViT", vit, _seen),
    _entry("DistilBERT with labels", distilbert, _with_labels),
)
