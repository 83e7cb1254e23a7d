"""Writes random PyTorch programs, line by line, from the tensors, nets and optimisers made so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from draws import Draw
from oracle import torch

# x is a tensor as the group needs it, y another one, mostly of the same shape, s a small one, z one that
# requires a gradient, d an axis of x, n its length, ids places along it, i an index, k the last length, c any
# number; of clones PyTorch keeps for backward what we do not
MAKES = {  # results get a name; a group is drawn as often as it is long
    "tensor": """
        {x}.tanh(); {x}.sigmoid(); {x}.abs(); {x}.square(); -{x}; {x}.relu(); {x}.cos(); {x}.abs().sqrt();
        {x}.clone(); {x}.contiguous(); {x}.clamp(-1, 1); {x}.clamp(min=0.1); {x}.exp().log();
        {x}.pow(3).tanh(); {x}.double(); {x}.reciprocal().tanh(); F.gelu({x}); F.silu({x});
        F.dropout({x}, 0.5, training=False); {x}.abs().log1p(); {x} + {y}; {x} - {y}; {x} * {y};
        {x} / ({y}.abs() + 1); torch.maximum({x}, {y}); torch.lerp({x}, {y}, 0.3);
        torch.where({x} > {y}, {x}, {y}); {x} * 0.5 + {y} * {c}; 1 - {x} * {y};
        torch.addcmul({x}, {y}, {y}); torch.stack([{x}, {y}]); torch.cat([{x}, {y}]);
        torch.minimum({x}, {y}); {x}.abs().pow({y}.tanh()); {x}.view(-1); {x}.reshape(-1); {x}[{i}];
        {x}[{i}]; {x}[{i}]; {x}.unsqueeze({d}); {x}.squeeze(); {x}.view(-1, 1); {x}.expand(2, *{x}.shape);
        {x}.detach(); {x}.view_as({x}); {x}.detach().clone(); {x}.expand_as({y}); {x} > 0.01; {x} <= {y};
        ({x} > 0.01) & ({x} < 1); ~({x} > 0.2); {x}.isnan(); {x} == {y}; {x}.masked_fill({mask}, 0.0);
        torch.where({mask}, {x}, {y}); {x}[{mask}]; {mask}.sum(); {x} * {mask}; {x}.sum(); {x}.mean();
        {x}.max(); {x}.norm(); {x}.prod(); {x}.amax(); {x}.tolist(); {x}.is_leaf;
        F.mse_loss({x}.clone(), {x}.detach() * 0.5); {x}.sum() if {x}.sum() > 0 else {x}.mean();
        copy.deepcopy({x}); {leaf}; {leaf}; {leaf}; {leaf}; {leaf}; {leaf}; {leaf}; {leaf}""",
    "axes": """
        {x}.transpose(0, -1); {x}.unbind({d})[0]; {x}.split(1, {d})[0]; {x}.chunk(2, {d})[0];
        {x}.select({d}, 0); {x}.narrow({d}, 0, 1); {x}.movedim(0, {d}); {x}.softmax({d}); {x}.cumsum({d});
        {x}.flip(0); {x}.roll(1); {x}.sum({d}); {x}.mean({d}, keepdim=True); {x}.max({d}).values;
        {x}.amax({d}, keepdim=True); {x}.prod({d}); {x}.logsumexp({d}); {x}.log_softmax({d});
        {x}.argmax({d}); {x}.sort({d}).values; {x}.topk(1, {d}).values; {x}.index_select({d}, {ids});
        {x}.clone().gather({d}, {x}.argsort({d})); F.pad({x}, (1, 0)); {x}.diff(dim={d});
        torch.take_along_dim({x}.clone(), {x}.argmax({d}, keepdim=True), {d});
        {x}.repeat(2, *[1] * {x}.ndim);
        torch.zeros_like({x}).scatter({d}, {x}.argmin({d}, keepdim=True), 1.0);
        {x}.repeat_interleave(2, {d}); torch.zeros_like({x}).index_add({d}, torch.arange({n}), {x}.clone());
        {x}.clone().var(correction=0); {x}.clone().std({d}, correction=0); F.layer_norm({x}, ({k},));
        {x}.reshape(-1).dot({x}.reshape(-1))""",
    "matrix": """
        {x}.T; {x}.t(); {x}.diagonal(); {x}.tril(); {x} @ {x}.mT; {x}.mT @ {x}; {x} @ {y}; {x} @ {x}[0];
        {x}.sum((0, -1)); torch.einsum('ij,kj->ik', {x}, {x}); F.cross_entropy({x}, {x}.argmin(1));
        F.scaled_dot_product_attention({x}, {x}, {x}, is_causal=True)""",
    "recorded": """
        torch.autograd.grad({x}.sum(), [{z}], create_graph=True, allow_unused=True)[0];
        {x}.grad_fn is None; {x}.grad;
        torch.autograd.grad(({x} ** 2).sum(), [{z}], allow_unused=True, retain_graph=True)[0];
        torch.autograd.grad({x}.tanh().sum(), [{z}], create_graph=True)[0]""",
}
NETS = """
        nn.Linear({k}, 3); nn.Sequential(nn.Linear({k}, 4), nn.GELU(), nn.Linear(4, 2)); nn.LayerNorm({k});
        nn.Sequential(nn.Linear({k}, {k}), nn.Tanh(), nn.LayerNorm({k})); nn.Linear({k}, 2, bias=False);
        nn.Sequential(nn.RMSNorm({k}), nn.ReLU()); nn.Sequential(nn.Dropout(0.5), nn.Linear({k}, 2)).eval()"""
OPTIMISERS = """
        optim.SGD({parameters}, lr=0.1); optim.SGD({parameters}, lr=0.1, momentum=0.9, nesterov=True);
        optim.Adam({parameters}, lr=0.01); optim.AdamW({parameters}, lr=0.01, weight_decay=0.1)"""
CHANGES = """
        {x}.mul_({c}); {x}.add_({y}); {x}.add_({y}, alpha=-0.5); {x}.sub_({y}); {x} *= {y}; {x} += 1.0;
        {x} -= {y}.mean(); {x}.zero_(); {x}.fill_({c}); {x}.copy_({y}); {x}.clamp_(-0.5, 0.5); {x}.tanh_();
        {x}.exp_(); {x}.relu_(); {x}.neg_(); {x}.sigmoid_(); {x}.div_(2); {x}.masked_fill_({x} > 0.3, 0.1);
        {x}.square_(); {x}.detach().mul_(0.5); {x}.lerp_({y}, 0.25); {x}.addcmul_({y}, {y});
        {x}[0].mul_(2.0); {x}[..., 0].add_(1.0); {x}[:1].zero_(); {x}.index_fill_({d}, {ids}, 0.2);
        {x}.view(-1)[0].fill_(0.7); {x}[{i}] = {c}; {x}[{i}] = {s}; {x}[{i}] *= 2.0; {x}[{i}] += {s};
        {x}[{x} > 0.01] = 0.25; {x}[{x} < -0.01] = {s}.sum(); {x}[{mask}] = {c}; {x}[...] = {y}"""
DOES = {
    "tensor": f"""
        {CHANGES}; with torch.no_grad(): {{change}}; with torch.no_grad(): {{change}};
        with torch.no_grad(): {{change}}; with torch.no_grad(): {{change}};
        with torch.enable_grad(): {{change}}; {{x}}.requires_grad_(); {{x}}.requires_grad_(False);
        {{x}} = {{x}} * 1.0; {{x}}.detach_(); del {{x}}; with torch.no_grad(): {{new}} = {{x}}[{{i}}];
        with torch.no_grad(): {{new}} = {{x}} * {{y}}""",
    "recorded": """
        {x}.sum().backward(); {x}.square().mean().backward(); {x}.sum().backward(retain_graph=True);
        {x}.retain_grad(); ({x} * {x}).sum().backward(retain_graph=True);
        {x}.backward(torch.ones_like({x})); {x}.grad = None;
        {x}.grad.zero_(); {x}.grad = torch.ones_like({x}); {x}.square().mean().backward();
        {x}.square().mean().backward(); {x}.square().mean().backward()""",
    "whole": "{x}.register_hook(lambda g: g * 2)",
    "axes": "; ".join(["net{new} = seeded({net_made}.double(), {seed})"] * 6),
    "net": "; ".join(["{new} = {net}({taken})"] * 8) + "; {net}.eval(); {net}.zero_grad()",
    "opt": "{opt}.step(); {opt}.step(); {opt}.step(); {opt}.zero_grad(); {opt}.zero_grad()",
    "leaf": "; ".join(["opt{new} = {opt_made}"] * 3),
}
NEEDS = {
    "axes": lambda x: x.ndim and x.numel(),
    "matrix": lambda x: x.ndim == 2 and x.numel(),
    "recorded": lambda x: x.requires_grad,
    "leaf": lambda x: x.requires_grad and x.is_leaf,
    "whole": lambda x: x.requires_grad and not x._is_view(),
}


def each(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.split(";")]


TEMPLATES = [(group, f"{{new}} = {text}") for group in MAKES for text in each(MAKES[group])]
TEMPLATES += [(group, text) for group in DOES for text in each(DOES[group])]


class Writer:
    """Writes the next line from what the program has made so far, as PyTorch sees it."""

    def __init__(self, seed: int, made: dict[str, Any]) -> None:
        self.draw, self.made, self.count = Draw(seed), made, 0

    def line(self) -> str:
        self.count += 1
        while True:
            group, text = self.draw.pick(TEMPLATES)
            tensors = self.named(torch.Tensor, lambda x: is_small(x) and NEEDS.get(group, is_small)(x))
            if tensors or "{x}" not in text:
                try:
                    return text.format(**self.fields(self.draw.pick(tensors or ["none"])))
                except KeyError:  # there is no net yet, or nothing that it takes
                    continue

    def last(self) -> Iterator[str]:
        """The gradients of everything, so that nothing stays unseen."""
        for x in self.named(torch.Tensor, lambda x: is_small(x) and x.requires_grad):
            yield f"{x}.sin().sum().backward(retain_graph=True)"

    def named(self, kind: Any, wanted: Any = lambda _: True) -> list[str]:
        return [name for name, value in self.made.items() if isinstance(value, kind) and wanted(value)]

    def fields(self, x: str) -> dict[str, Any]:
        """What stands in the place of each {field}; one that there is nothing for is left out."""
        found: dict[str, Any] = {"new": f"v{self.count}", "seed": self.count, "leaf": self.leaf()}
        if x not in self.made:
            return found
        pick, shape = self.draw.pick, self.made[x].shape
        axis = self.draw.dim(len(shape))
        n, k = (shape[axis], shape[-1]) if shape else (1, 1)
        few = self.named(torch.Tensor, lambda y: is_small(y) and y.ndim < 2 and y.numel() < 5)
        like = self.named(torch.Tensor, lambda y: is_small(y) and y.shape == shape)
        masks = self.named(torch.Tensor, lambda m: m.dtype == torch.bool and m.shape == shape)
        recorded = self.named(torch.Tensor, lambda z: is_small(z) and z.requires_grad)
        found |= {
            "x": x,
            "d": axis,
            "n": n,
            "k": k,
            "i": self.index(shape),
            "ids": f"torch.tensor({self.ids(n)})",
        }
        found |= {"s": pick(few or [x]), "z": pick(recorded or [x]), "c": self.draw.int(-100, 100) / 100}
        found["y"] = pick([pick(like), pick(like), found["s"], pick(self.named(torch.Tensor, is_small))])
        found |= {"y": self.apart(found["y"], x), "s": self.apart(found["s"], x, same=False)}
        found["mask"] = pick(masks or [f"({x} > 0.01)"])
        found |= {"change": pick(each(CHANGES)).format(**found), "net_made": pick(each(NETS)).format(k=k)}
        return found | self.trained(f"[{x}]")

    def apart(self, y: str, x: str, same: bool = True) -> str:
        """y, or a copy where it lies across x: changing x by it, PyTorch would read what it has changed."""
        a, b = self.made[x], self.made[y]
        across = a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        return f"{y}.clone()" if across and not (same and a.is_set_to(b)) else y

    def trained(self, parameters: str) -> dict[str, Any]:
        """A net and what it takes, an optimiser, and how one is made."""
        pick, found = self.draw.pick, {}
        if nets := self.named(torch.nn.Module):
            net = found["net"] = pick(nets)
            k = next(self.made[net].parameters()).shape[-1]
            taken = self.named(torch.Tensor, lambda z: is_small(z) and z.ndim and z.shape[-1] == k)
            found |= {"taken": pick(taken)} if taken else {}
            parameters = pick([parameters, f"{net}.parameters()"])
        if optimisers := self.named(torch.optim.Optimizer):
            found["opt"] = pick(optimisers)
        return found | {"opt_made": pick(each(OPTIMISERS)).format(parameters=parameters)}

    def leaf(self) -> str:
        elements = self.draw.rng.uniform(-2, 2, self.draw.shape(high=3, empty=False))
        grad = ", requires_grad=True" * self.draw.chance(0.75)
        return f"torch.tensor({np.round(elements, 3).tolist()}, dtype=torch.float64{grad})"

    def ids(self, n: int) -> list[int]:
        return [self.draw.int(0, max(n - 1, 0)) for _ in range(self.draw.int(1, 3))]

    def index(self, shape: Any) -> str:
        parts = []
        for n in shape[: self.draw.int(1, 3)]:
            at = self.draw.int(-n, n - 1) if n else ":"
            kinds = [at, at, *": 1: ::2 :-1 None".split(), self.ids(n), f"torch.tensor({self.ids(n)})", "..."]
            parts.append(str(self.draw.pick(kinds[:-1] if "..." in parts else kinds)))
        return ", ".join(parts) or "..."


def is_small(x: Any) -> bool:
    return x.dtype == torch.float64 and x.numel() < 200
