"""An MLP in the style of makemore, written for PyTorch: indexing, batch norm and its backward by hand."""

# ruff: noqa: RUF005

import torch
import torch.nn.functional as F

n, vocab_size, block_size, n_embd, n_hidden = 8, 7, 3, 4, 6


def cmp(dt, t):
    exact = torch.all(dt == t.grad).item()
    approximate = torch.allclose(dt, t.grad)
    maxdiff = (dt - t.grad).abs().max().item()
    return [bool(exact) or approximate, approximate, maxdiff < 1e-9]


def build_dataset(words):
    X, Y = [], []
    for w in words:
        context = [0] * block_size
        for ix in [*w, 0]:
            X.append(context)
            Y.append(ix)
            context = context[1:] + [ix]
    return torch.tensor(X), torch.tensor(Y)


def by_hand(parameters, Xb, Yb):
    C, W1, b1, W2, b2, bngain, bnbias = parameters
    emb = C[Xb]
    embcat = emb.view(emb.shape[0], -1)
    hprebn = embcat @ W1 + b1
    bnmeani = 1 / n * hprebn.sum(0, keepdim=True)
    bndiff = hprebn - bnmeani
    bndiff2 = bndiff**2
    bnvar = 1 / (n - 1) * (bndiff2).sum(0, keepdim=True)
    bnvar_inv = (bnvar + 1e-5) ** -0.5
    bnraw = bndiff * bnvar_inv
    hpreact = bngain * bnraw + bnbias
    h = torch.tanh(hpreact)
    logits = h @ W2 + b2
    logit_maxes = logits.max(1, keepdim=True).values
    norm_logits = logits - logit_maxes
    counts = norm_logits.exp()
    counts_sum = counts.sum(1, keepdims=True)
    counts_sum_inv = counts_sum**-1
    probs = counts * counts_sum_inv
    logprobs = probs.log()
    loss = -logprobs[range(n), Yb].mean()
    for p in parameters:
        p.grad = None
    kept = [
        logprobs,
        probs,
        counts,
        counts_sum,
        counts_sum_inv,
        norm_logits,
        logits,
        h,
        hpreact,
        bnraw,
        bnvar_inv,
    ]
    kept += [bnvar, bndiff2, bndiff, hprebn, bnmeani, embcat, emb]
    for t in kept:
        t.retain_grad()
    loss.backward()

    dlogprobs = torch.zeros_like(logprobs)
    dlogprobs[range(n), Yb] = -1.0 / n
    dprobs = (1.0 / probs) * dlogprobs
    dcounts_sum_inv = (counts * dprobs).sum(1, keepdim=True)
    dcounts = counts_sum_inv * dprobs
    dcounts_sum = (-(counts_sum**-2)) * dcounts_sum_inv
    dcounts += torch.ones_like(counts) * dcounts_sum
    dnorm_logits = counts * dcounts
    dlogits = dnorm_logits.clone()
    dlogit_maxes = (-dnorm_logits).sum(1, keepdim=True)
    dlogits += F.one_hot(logits.max(1).indices, num_classes=logits.shape[1]) * dlogit_maxes
    dh = dlogits @ W2.T
    dW2 = h.T @ dlogits
    db2 = dlogits.sum(0)
    dhpreact = (1.0 - h**2) * dh
    dbngain = (bnraw * dhpreact).sum(0, keepdim=True)
    dbnraw = bngain * dhpreact
    dbnbias = dhpreact.sum(0, keepdim=True)
    dbndiff = bnvar_inv * dbnraw
    dbnvar_inv = (bndiff * dbnraw).sum(0, keepdim=True)
    dbnvar = (-0.5 * (bnvar + 1e-5) ** -1.5) * dbnvar_inv
    dbndiff2 = (1.0 / (n - 1)) * torch.ones_like(bndiff2) * dbnvar
    dbndiff += (2 * bndiff) * dbndiff2
    dhprebn = dbndiff.clone()
    dbnmeani = (-dbndiff).sum(0)
    dhprebn += 1.0 / n * (torch.ones_like(hprebn) * dbnmeani)
    dembcat = dhprebn @ W1.T
    dW1 = embcat.T @ dhprebn
    db1 = dhprebn.sum(0)
    demb = dembcat.view(emb.shape)
    dC = torch.zeros_like(C)
    for k in range(Xb.shape[0]):
        for j in range(Xb.shape[1]):
            ix = Xb[k, j]
            dC[ix] += demb[k, j]
    pairs = [(dlogprobs, logprobs), (dprobs, probs), (dcounts, counts), (dlogits, logits), (dh, h), (dW2, W2)]
    pairs += [(db2, b2), (dhpreact, hpreact), (dbngain, bngain), (dbnbias, bnbias), (dbnraw, bnraw)]
    pairs += [(dbnvar_inv, bnvar_inv), (dbnvar, bnvar), (dhprebn, hprebn), (dembcat, embcat), (dW1, W1)]
    pairs += [(db1, b1), (demb, emb), (dC, C)]
    return [cmp(dt, t) for dt, t in pairs], loss.item()


def initial(torch):
    g = torch.Generator().manual_seed(2147483647)
    return {
        "C": torch.randn((vocab_size, n_embd), generator=g),
        "W1": torch.randn((n_embd * block_size, n_hidden), generator=g)
        * (5 / 3)
        / ((n_embd * block_size) ** 0.5),
        "b1": torch.randn(n_hidden, generator=g) * 0.1,
        "W2": torch.randn((n_hidden, vocab_size), generator=g) * 0.1,
        "b2": torch.randn(vocab_size, generator=g) * 0.1,
        "bngain": torch.randn((1, n_hidden)) * 0.1 + 1.0,
        "bnbias": torch.randn((1, n_hidden)) * 0.1,
    }


def run(state):
    parameters = list((state(torch) if state else initial(torch)).values())
    assert sum(p.nelement() for p in parameters) > 100
    for p in parameters:
        p.requires_grad = True
    X, Y = build_dataset([[1, 2, 3], [2, 4, 6, 1], [5, 5, 3, 2], [6, 1, 4]])
    checks, first = by_hand(parameters, X[:n], Y[:n])
    C, W1, b1, W2, b2, bngain, bnbias = parameters
    bnmean_running, bnstd_running = torch.zeros((1, n_hidden)), torch.ones((1, n_hidden))
    lossi = []
    for i in range(10):
        ix = torch.arange(i, i + n)
        Xb, Yb = X[ix % len(X)], Y[ix % len(X)]
        hpreact = C[Xb].view(Xb.shape[0], -1) @ W1 + b1
        bnmeani = hpreact.mean(0, keepdim=True)
        bnstdi = hpreact.std(0, keepdim=True)
        hpreact = bngain * (hpreact - bnmeani) / bnstdi + bnbias
        with torch.no_grad():
            bnmean_running = 0.99 * bnmean_running + 0.01 * bnmeani
            bnstd_running = 0.99 * bnstd_running + 0.01 * bnstdi
        logits = torch.tanh(hpreact) @ W2 + b2
        loss = F.cross_entropy(logits, Yb)
        for p in parameters:
            p.grad = None
        loss.backward()
        for p in parameters:
            p.data += -0.1 * p.grad
        lossi.append(loss.log10().item() if hasattr(loss, "log10") and False else loss.item())
    table = torch.zeros((vocab_size, vocab_size), dtype=torch.int32)
    for a, b in zip(X[:, -1].tolist(), Y.tolist()):  # noqa: B905
        table[a, b] += 1
    P = (table + 1).float()
    P /= P.sum(1, keepdims=True)
    with torch.no_grad():
        context, out = [0] * block_size, []
        for _ in range(5):
            emb = C[torch.tensor([context])]
            h = torch.tanh(bngain * (emb.view(1, -1) @ W1 + b1 - bnmean_running) / bnstd_running + bnbias)
            ix = F.softmax(h @ W2 + b2, dim=1).argmax(dim=1).item()
            context = context[1:] + [ix]
            out.append(ix)
    return {
        "checks": checks,
        "first": first,
        "losses": lossi,
        "windows": torch.tensor(lossi, dtype=torch.float64).view(-1, 5).mean(1).tolist(),
        "counts": P.tolist(),
        "sampled": out,
        "table": parameters[0].detach().numpy(),
    }
