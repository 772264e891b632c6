"""A character-level GPT in the style of minGPT (Karpathy 2020), trained on sums until it can add.

The text of a sum is "85+50=531": two operands of two digits, and the result with its digits reversed,
because sums are computed from the right. The network reads a prefix and predicts the next character; the
loss covers only the result.

    python clients/python/examples/char_gpt.py [--address HOST:PORT] [--steps 1000]
"""

import argparse
import math
import time

import numpy as np
import teletensor as torch
import teletensor.nn as nn
from teletensor.nn import functional as F


class CausalSelfAttention(nn.Module):
    """Multi-head masked self-attention followed by a projection."""

    def __init__(self, n_embd, n_head, block_size, pdrop):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(pdrop)
        self.resid_dropout = nn.Dropout(pdrop)
        self.register_buffer(
            "bias",
            torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size),
        )
        self.n_head = n_head
        self.n_embd = n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size, pdrop):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, block_size, pdrop)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.ModuleDict(
            dict(
                c_fc=nn.Linear(n_embd, 4 * n_embd),
                c_proj=nn.Linear(4 * n_embd, n_embd),
                act=nn.GELU(approximate="tanh"),
                dropout=nn.Dropout(pdrop),
            )
        )
        m = self.mlp
        self.mlpf = lambda x: m.dropout(m.c_proj(m.act(m.c_fc(x))))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlpf(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer=3, n_head=3, n_embd=48, pdrop=0.1):
        super().__init__()
        self.block_size = block_size
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(vocab_size, n_embd),
                wpe=nn.Embedding(block_size, n_embd),
                drop=nn.Dropout(pdrop),
                h=nn.ModuleList([Block(n_embd, n_head, block_size, pdrop) for _ in range(n_layer)]),
                ln_f=nn.LayerNorm(n_embd),
            )
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.apply(self._init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * n_layer))

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
        elif isinstance(module, nn.LayerNorm):
            torch.nn.init.zeros_(module.bias)
            torch.nn.init.ones_(module.weight)

    def configure_optimizers(self, lr, weight_decay, betas=(0.9, 0.95)):
        """Applies weight decay only to the weight matrices of linear layers."""
        decay, no_decay = set(), set()
        for mn, m in self.named_modules():
            for pn, _ in m.named_parameters(recurse=False):
                name = f"{mn}.{pn}" if mn else pn
                (decay if pn == "weight" and isinstance(m, nn.Linear) else no_decay).add(name)
        params = {name: p for name, p in self.named_parameters()}
        assert decay | no_decay == params.keys() and not decay & no_decay
        groups = [
            {"params": [params[n] for n in sorted(decay)], "weight_decay": weight_decay},
            {"params": [params[n] for n in sorted(no_decay)], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=betas)

    def forward(self, idx, targets=None):
        b, t = idx.size()
        assert t <= self.block_size
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device).unsqueeze(0)
        tok_emb = self.transformer.wte(idx)
        pos_emb = self.transformer.wpe(pos)
        x = self.transformer.drop(tok_emb + pos_emb)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        logits = self.lm_head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(
                logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
            )
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, do_sample=False, top_k=None):
        for _ in range(max_new_tokens):
            idx_cond = idx if idx.size(1) <= self.block_size else idx[:, -self.block_size :]
            logits, _ = self(idx_cond)
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                v, _ = torch.topk(logits, top_k)
                logits[logits < v[:, [-1]]] = -float("Inf")
            probs = F.softmax(logits, dim=-1)
            if do_sample:
                idx_next = torch.multinomial(probs, num_samples=1)
            else:
                _, idx_next = torch.topk(probs, k=1, dim=-1)
            idx = torch.cat((idx, idx_next), dim=1)
        return idx


class Sums:
    """All sums of two numbers of `ndigit` digits; one in ten is held out for testing. Characters are the
    digits; 10 is "+" and 11 is "="."""

    def __init__(self, ndigit=2, seed=1337):
        self.ndigit = ndigit
        perm = np.random.default_rng(seed).permutation(10 ** (2 * ndigit))
        held_out = max(1, len(perm) // 10)
        self.splits = {"test": perm[:held_out], "train": perm[held_out:]}

    vocab_size = 12

    @property
    def block_size(self):
        return 3 * self.ndigit + 2

    def rows(self, numbers):
        nd = 10**self.ndigit
        text = []
        for number in numbers:
            a, b = divmod(int(number), nd)
            c = str(a + b).zfill(self.ndigit + 1)[::-1]
            render = f"{a:0{self.ndigit}d}+{b:0{self.ndigit}d}={c}"
            text.append(["0123456789+=".index(ch) for ch in render])
        rows = np.array(text, dtype=np.int64)
        x, y = rows[:, :-1], rows[:, 1:].copy()
        y[:, : 2 * self.ndigit + 1] = -1  # the loss does not cover the question
        return x, y

    def batch(self, step, size):
        numbers = np.random.default_rng([7, step]).choice(self.splits["train"], size)
        return self.rows(numbers)


def train(model, data, steps, batch_size=64, lr=2e-3, report=200):
    """Trains the model; returns the losses of all steps."""
    optimizer = model.configure_optimizers(lr=lr, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * s / steps))
    )
    model.train()
    losses = []
    for step in range(steps):
        x, y = (torch.tensor(part) for part in data.batch(step, batch_size))
        _, loss = model(x, y)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if report and (step + 1) % report == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    return torch.stack(losses).tolist()


def accuracy(model, data, split="test", limit=500):
    """Returns the fraction of sums in which every digit is right."""
    model.eval()
    x, y = data.rows(data.splits[split][:limit])
    question = torch.tensor(x[:, : 2 * data.ndigit + 2])
    answer = model.generate(question, data.ndigit + 1, do_sample=False)
    right = (answer[:, -data.ndigit - 1 :] == torch.tensor(y[:, -data.ndigit - 1 :])).all(1)
    return right.float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="daemon to use: HOST:PORT or unix:PATH")
    parser.add_argument("--digits", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    begin = time.monotonic()
    with torch.connect(args.address):
        torch.manual_seed(3407)
        data = Sums(args.digits)
        model = GPT(data.vocab_size, data.block_size, pdrop=0.0)
        count = sum(p.numel() for p in model.parameters())
        print(f"number of parameters: {count / 1e3:.1f}k")
        train(model, data, args.steps, args.batch)
        right = accuracy(model, data)
    print(f"accuracy {right:.4f} on sums it has not seen, after {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
