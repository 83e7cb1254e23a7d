"""Pieces of Transformers as libraries write them, for PyTorch: masks, positions, sampling, beams, caches."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def waves(*shape, grad=False):
    n = math.prod(shape)
    return (torch.arange(n).view(*shape).double() * 0.7).sin().clone().requires_grad_(grad)


def split_heads(grad=True):
    x = waves(2, 5, 12, grad=grad)
    new_shape = x.size()[:-1] + (3, x.size(-1) // 3)  # noqa: RUF005
    q, k, v = (x.view(*new_shape).permute(0, 2, 1, 3) * s for s in (1.0, 0.5, 2.0))
    w = torch.matmul(q, k.transpose(-1, -2)) / (v.size(-1) ** 0.5)
    causal = torch.ones((5, 5), dtype=torch.bool).tril(diagonal=0).view(1, 1, 5, 5)
    mask_value = torch.full([], torch.finfo(w.dtype).min, dtype=w.dtype, device=w.device)
    w = torch.where(causal, w.to(w.dtype), mask_value)
    attention_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    extended = (1.0 - attention_mask[:, None, None, :].to(dtype=w.dtype)) * torch.finfo(w.dtype).min
    w = nn.functional.softmax(w + extended.clamp(min=-1e4), dim=-1).type(v.dtype)
    y = torch.matmul(w, v).permute(0, 2, 1, 3).contiguous()
    y = y.view(y.size()[:-2] + (12,))  # noqa: RUF005
    y.square().sum().backward()
    position_ids = attention_mask.long().cumsum(-1) - 1
    position_ids.masked_fill_(attention_mask == 0, 1)
    again = torch.arange(5, dtype=torch.long).unsqueeze(0).expand_as(attention_mask)
    return y, x.grad, position_ids, again


def rotary(dim=8, length=5):
    inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim))
    t = torch.arange(length).type_as(inv_freq)
    freqs = torch.einsum("i,j->ij", t, inv_freq)
    assert torch.allclose(freqs, torch.outer(t, inv_freq))
    emb = torch.cat((freqs, freqs), dim=-1).double()
    x = waves(2, 3, length, dim, grad=True)
    x1, x2 = x.chunk(2, dim=-1)
    half = x * emb.cos() + torch.cat((-x2, x1), dim=-1) * emb.sin()
    even, odd = x[..., ::2], x[..., 1::2]
    turned = torch.stack((-odd, even), dim=-1).flatten(-2)
    sin, cos = (f.double().repeat_interleave(2, dim=-1) for f in (freqs.sin(), freqs.cos()))
    pairs = x * cos + turned * sin
    (half.pow(3).sum() + pairs.exp().sum()).backward()
    return half, pairs, x.grad


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim, dtype=torch.float64))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x).type_as(x) * self.weight


def grouped_queries():
    norm = RMSNorm(4)
    q, k = norm(waves(1, 6, 5, 4, grad=True)), norm(waves(1, 2, 5, 4))
    n_rep, (B, H, T, D) = 3, k.shape
    k = k[:, :, None, :, :].expand(B, H, n_rep, T, D).reshape(B, H * n_rep, T, D)
    distance = torch.arange(T)[None, :] - torch.arange(T)[:, None]
    slopes = torch.tensor([2.0 ** (-8 * (i + 1) / 6) for i in range(6)], dtype=torch.float64)
    alibi = slopes.view(6, 1, 1) * distance.clamp(max=0)[None]
    scores = q @ k.mT + alibi
    scores.logsumexp(-1).sum().backward()
    return scores, norm.weight.grad


def relative_buckets(num_buckets=8, max_distance=20):
    context, memory = torch.arange(9)[:, None], torch.arange(9)[None, :]
    relative = memory - context
    n = -torch.min(relative, torch.zeros_like(relative))
    max_exact = num_buckets // 2
    is_small = n < max_exact
    large = max_exact + (
        torch.log(n.float().clamp(min=1) / max_exact)
        / math.log(max_distance / max_exact)
        * (num_buckets - max_exact)
    ).to(torch.long)
    large = torch.min(large, torch.full_like(large, num_buckets - 1))
    buckets = torch.where(is_small, n, large)
    table = nn.Embedding(num_buckets, 2, dtype=torch.float64)
    with torch.no_grad():
        table.weight.copy_(waves(num_buckets, 2))
    values = table(buckets).permute([2, 0, 1]).unsqueeze(0)
    (values**2).sum().backward()
    return buckets, values, table.weight.grad


def top_p(p=0.8):
    logits = waves(3, 11) * 3
    sorted_logits, sorted_indices = torch.sort(logits, descending=True)
    cumulative = torch.cumsum(F.softmax(sorted_logits, dim=-1), dim=-1)
    remove = cumulative > p
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = 0
    to_remove = remove.scatter(1, sorted_indices, remove)
    kept = logits.masked_fill(to_remove, -float("inf"))
    penalised = logits.clone()
    ids = torch.tensor([[1, 2], [0, 0], [5, 10]])
    score = torch.gather(penalised, 1, ids)
    score = torch.where(score < 0, score * 1.2, score / 1.2)
    penalised.scatter_(1, ids, score)
    return kept, penalised, kept.isinf().sum(), (kept > -1e9).any(dim=-1)


def beams(num_beams=3, V=7):
    scores = torch.log_softmax(waves(2 * num_beams, V), dim=-1)
    beam_scores = torch.zeros((2, num_beams), dtype=torch.float64)
    beam_scores[:, 1:] = -1e9
    total = (scores + beam_scores.view(-1)[:, None].expand_as(scores)).view(2, num_beams * V)
    best, tokens = torch.topk(total, 2 * num_beams, dim=1, largest=True, sorted=True)
    came_from = torch.div(tokens, V, rounding_mode="floor")
    assert torch.equal(came_from, tokens // V)
    tokens = tokens % V
    order = (came_from[:, :num_beams] + num_beams * torch.arange(2).unsqueeze(1)).view(-1)
    cache = waves(2 * num_beams, 2, 4).index_select(0, order)
    cache = torch.cat([cache, cache[:, :, -1:]], dim=-1)
    finished = tokens[:, :num_beams].eq(3)
    return (
        best,
        tokens,
        came_from,
        cache,
        finished,
        torch.all(finished),
        (~finished).nonzero(),
        finished.long().argmax(-1),
    )


def losses():
    logits, labels = waves(2, 5, 7, grad=True), torch.tensor([[1, 2, 3, -100, 4], [0, 6, -100, -100, 5]])
    shift_logits, shift_labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
    loss = nn.CrossEntropyLoss()(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))
    other = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    keep = labels.ne(-100)
    per_token = other.masked_select(keep).mean()
    smooth = -F.log_softmax(logits, dim=-1).mean(dim=-1)[keep].sum() / keep.sum()
    picked = logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    pooled = (logits * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)
    normed = F.normalize(pooled, p=2, dim=1)
    (loss + per_token + smooth + picked.mean() + (normed @ normed.t()).sum()).backward()
    return loss, other, per_token, smooth, picked, normed @ normed.T, logits.grad


def windows():
    x = waves(1, 6, 4, grad=True)
    shifted = torch.roll(x, shifts=-1, dims=1)
    padded = F.pad(x, (0, 0, 2, 0))
    tokens = padded[:, :-2].unflatten(1, (3, 2)).movedim(2, 1)
    doubled = torch.cat([tokens.flatten(1, 2), shifted], dim=1)[:, torch.tensor([0, 3, 3, 1])]
    mean, var = doubled.mean(-1, keepdim=True), doubled.var(-1, keepdim=True, unbiased=False)
    normed = (doubled - mean) / torch.sqrt(var + 1e-5)
    normed.pow(3).sum().backward()
    return shifted, padded, tokens, normed, x.grad, x.detach().std(), x.detach().max(dim=1)[0], x.min()


def run(state):
    """Every piece; the numbers of each."""
    pieces = [split_heads, rotary, grouped_queries, relative_buckets, top_p, beams, losses, windows]
    return {
        piece.__name__: {str(i): value.detach().numpy() for i, value in enumerate(piece())}
        for piece in pieces
    }
