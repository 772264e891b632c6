"""Models of transformers, timm and torchvision with small configurations and random weights.

`make(name)` returns the model, its arguments by keyword, and the loss of its result. Dropout is off, so that
two devices compute the same.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS = 96


def _own_loss(result):
    return result.loss


def _classes(result):
    return F.cross_entropy(result, torch.arange(len(result), device=result.device) % result.shape[1])


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0,
                        embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    ids = torch.randint(0, WORDS, (2, 12))
    return GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}, _own_loss


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                         bos_token_id=0, eos_token_id=0)
    ids = torch.randint(0, WORDS, (2, 12))
    return LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}, _own_loss


def bert():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=48, max_position_embeddings=32, hidden_dropout_prob=0,
                        attention_probs_dropout_prob=0)
    ids = torch.randint(0, WORDS, (2, 12))
    return BertForMaskedLM(config), {"input_ids": ids, "labels": ids}, _own_loss


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(vocab_size=WORDS, d_model=32, encoder_layers=2, decoder_layers=2,
                           encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
                           decoder_ffn_dim=48, max_source_positions=16, max_target_positions=16,
                           num_mel_bins=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                           decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None)
    labels = torch.randint(3, WORDS, (2, 8))
    model = WhisperForConditionalGeneration(config)
    return model, {"input_features": torch.randn(2, 8, 32), "labels": labels}, _own_loss


def vit():
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=48, num_classes=10)
    return model, {"x": torch.randn(4, 3, 32, 32)}, _classes


def hf_vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                       image_size=32, patch_size=8, num_labels=10, hidden_dropout_prob=0,
                       attention_probs_dropout_prob=0)
    model = ViTForImageClassification(config)
    return model, {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.arange(4)}, _own_loss


def convnext():
    import timm

    model = timm.create_model("convnext_atto", num_classes=10, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))
    return model, {"x": torch.randn(2, 3, 32, 32)}, _classes


def resnet18():
    import torchvision

    return torchvision.models.resnet18(num_classes=10), {"x": torch.randn(4, 3, 32, 32)}, _classes


class Lstm(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.cells = nn.LSTM(16, 24, 2, batch_first=True)
        self.out = nn.Linear(24, WORDS)

    def forward(self, x):
        return self.out(self.cells(self.embedding(x))[0]).flatten(0, 1)


def lstm():
    return Lstm(), {"x": torch.randint(0, WORDS, (4, 8))}, _classes


MODELS = {each.__name__: each for each in (gpt2, llama, bert, whisper, vit, hf_vit, convnext, resnet18, lstm)}


def make(name):
    torch.manual_seed(0)
    return MODELS[name]()


def moved(arguments, device):
    return {name: value.to(device) for name, value in arguments.items()}
