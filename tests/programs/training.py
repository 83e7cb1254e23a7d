"""A training script with the habits of many, written for PyTorch."""

import os
import tempfile
from collections import OrderedDict

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import clip_grad_value_, parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset


class Points(Dataset):
    def __init__(self, n):
        t = torch.linspace(-1, 1, n)
        self.x = torch.stack([t, t.pow(2), torch.sin(3 * t)], dim=1)
        self.y = ((t * 7).long() % 3 + 3) % 3

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Sequential(
            OrderedDict([("inp", nn.Linear(3, width)), ("act", nn.Tanh()), ("norm", nn.LayerNorm(width))])
        )
        self.heads = nn.ModuleDict({"classes": nn.Linear(width, 3), "value": nn.Linear(width, 1)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(2)])
        self.register_buffer("steps", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        self.steps += 1
        hidden = self.body(x) * self.scales[0]
        return {name: head(hidden) * self.scales[1] for name, head in self.heads.items()}


def count(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def run(state):
    """Train, freeze, distil and restore: everything that can be compared."""
    device = torch.device("cuda" if torch.cuda.is_available() and False else "cpu")
    model, teacher = Net().to(device), Net().to(device)
    if state is not None:
        model.load_state_dict(state(torch))
    teacher.load_state_dict(OrderedDict((k, v * 2) for k, v in model.state_dict().items()))
    for p in teacher.parameters():
        p.requires_grad = False
    teacher.eval()
    loader = DataLoader(Points(20), batch_size=8, shuffle=False, drop_last=True, num_workers=0)
    decay, rest = [], []
    for name, p in model.named_parameters():
        (rest if name.endswith("bias") or p.ndim < 2 else decay).append(p)
    optimizer = optim.SGD(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "lr": 0.05}], lr=0.1, momentum=0.9
    )
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    grads, shapes, losses = [], [], []
    hook = model.body.act.register_forward_hook(lambda m, i, o: shapes.append(tuple(o.shape)))
    pre = model.body.register_forward_pre_hook(lambda m, args: (args[0] * 1.0,))
    for _ in range(3):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            out = model(x)
            with torch.no_grad():
                soft = F.softmax(teacher(x)["classes"] / 2.0, dim=-1)
            loss = nn.CrossEntropyLoss(label_smoothing=0.1)(out["classes"], y)
            loss = loss + nn.KLDivLoss(reduction="batchmean")(F.log_softmax(out["classes"], dim=-1), soft)
            loss = loss + 0.1 * nn.MSELoss()(out["value"].squeeze(-1), y.float())
            loss = loss + nn.NLLLoss()(nn.LogSoftmax(dim=1)(out["classes"]), y)
            loss.backward()
            clip_grad_value_(model.parameters(), 0.5)
            grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item())
            optimizer.step()
            losses.append(loss.detach().cpu().item())
        scheduler.step()
    hook.remove()
    pre.remove()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint")
        torch.save({"model": model.state_dict(), "epoch": 3}, path)
        loaded = torch.load(path)
    other = Net()
    other.load_state_dict(loaded["model"])
    vector = parameters_to_vector(other.parameters())
    vector_to_parameters(vector * 0.5, other.parameters())
    total = torch.cat([p.view(-1) for p in other.parameters()])
    pred = torch.argmax(model(Points(20).x)["classes"], dim=1)
    correct = (pred == Points(20).y).sum().item()
    part = Subset(TensorDataset(Points(20).x, Points(20).y), [3, 1])
    return {
        "losses": losses,
        "grads": grads,
        "shapes": [n for shape in shapes for n in shape],
        "count": [
            count(model),
            count(teacher),
            correct,
            loaded["epoch"],
            model.steps.item(),
            len(loader),
            len(part),
        ],
        "part": [*part[0][0].tolist(), part[1][1].item()],
        "halved": total.detach().numpy().tolist(),
        "rates": [group["lr"] for group in optimizer.param_groups],
        "state": {name: value.detach().numpy() for name, value in model.state_dict().items()},
    }
