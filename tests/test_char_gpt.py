"""char_gpt as its user meets it: it trains on any text, resumes to the same bits, and refuses in one line."""

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from examples_here import EXAMPLES, run_here
from safetensors.numpy import load_file

import microtensor as mt
from microtensor import nn
from microtensor.train import load_checkpoint, save_checkpoint
from models import GPT, GPTConfig

ROOT = Path(__file__).resolve().parent.parent
TEXT = "Bügel, Ärger und Öl: übermäßig süß!\n" * 60  # 2,160 characters
char_gpt = partial(run_here, "char_gpt")


def test_char_gpt_learns_from_the_documentation_of_python_and_writes(tmp_path):
    command = [sys.executable, EXAMPLES / "char_gpt.py", "--smoke", "--length", "40", "--samples", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"validation loss \d\.\d{4} \(all \d+ blocks of the last tenth\)", done.stdout)
    assert done.stdout.count("-" * 80 + "\n") == 3  # around two samples
    names = {path.name for path in (tmp_path / "runs" / "chars-smoke").iterdir()}
    assert {"log.jsonl", "step-00000020.safetensors"} <= names
    run = tmp_path / "runs" / "chars-smoke"
    _, _, stderr = char_gpt("--resume", "--out", run, "--text", ROOT / "README.md")
    assert f"{run} was begun with the documentation of Python; leave --text out" in stderr


@pytest.mark.parametrize("arguments", [[], ["--text", "mine.txt"]])
def test_a_text_that_changed_is_named(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text(TEXT, encoding="utf-8")
    assert char_gpt("--smoke", "--steps", 1, "--length", 1, "--text", "mine.txt", "--out", "run")[0] == 0
    Path("mine.txt").write_text(TEXT + "!", encoding="utf-8")
    status, _, stderr = char_gpt("--resume", "--out", "run", *arguments)
    assert status == 2
    assert "run was begun with an earlier mine.txt; bring that back, or name another --out" in stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with a text and a run on it, and what the run printed."""
    folder = tmp_path_factory.mktemp("chars")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8-sig")
    (folder / "broken.txt").write_bytes(b"abc\xff")
    (folder / "short.txt").write_text("too short")
    (folder / "other.txt").write_text(TEXT.replace("Ö", "O"), encoding="utf-8")
    status, stdout, stderr = char_gpt("--smoke", "--dropout", 0.1, "--text", folder / "text.txt", "--out",
                                      folder / "run", "--temperature", 0, "--prompt", "Öl")  # fmt: skip
    assert status == 0, stderr
    return folder, stdout


def test_a_run_of_another_program_is_no_run_to_go_on_with(written):
    folder, _ = written
    status, _, stderr = run_here("translate_dates", "--resume", "--out", folder / "run")
    assert status == 2
    assert stderr == (
        f"translate_dates: --resume: the run in {folder / 'run'} is of another program; name another --out\n"
    )


def test_char_gpt_resumed_ends_with_the_same_bits_and_words(written):
    folder, stdout = written
    last = folder / "run" / "step-00000020.safetensors"
    whole = load_file(last)
    last.unlink()
    same = shutil.copy(folder / "text.txt", folder / "same.txt")  # a text is known by what it says
    status, again, stderr = char_gpt("--resume", "--out", folder / "run", "--text", same,
                                     "--temperature", 0, "--prompt", "Öl")  # fmt: skip
    assert status == 0, stderr
    resumed = load_file(last)
    assert whole.keys() == resumed.keys()
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)
    assert [line for line in again.splitlines() if "trained" not in line] == [
        line for line in stdout.splitlines() if "trained" not in line
    ]
    assert "\nÖl" in again


def test_a_damaged_checkpoint_is_passed_over_and_told_once_in_a_line_of_the_program(written, tmp_path):
    shutil.copytree(written[0] / "run", tmp_path / "run")
    last = tmp_path / "run" / "step-00000020.safetensors"
    whole = load_file(last)
    last.write_bytes(last.read_bytes()[:-9])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        status, _, stderr = char_gpt("--resume", "--out", tmp_path / "run", "--length", 1)
    assert status == 0, stderr
    (line,) = (line for line in stderr.splitlines() if "damaged" in line)
    said = r"char_gpt: Trainer: .*0020\.safetensors' is damaged .*; going on from .*0018\S+, of step 18"
    assert re.fullmatch(said, line)
    assert "Warning" not in stderr
    assert all(np.array_equal(whole[name], t) for name, t in load_file(last).items())


def test_the_loss_of_char_gpt_is_that_of_every_block_of_the_last_tenth(written):
    folder, stdout = written
    chars = sorted(set(TEXT))
    ids = [chars.index(c) for c in TEXT[int(0.9 * len(TEXT)) :]]
    model = GPT(GPTConfig(16, len(chars), 1, 2, 32, bias=False))
    load_checkpoint(folder / "run" / "step-00000020.safetensors").restore(model)
    losses = []
    for i in range(0, len(ids) - 16, 16):
        x, y = mt.tensor([ids[i : i + 16]]), mt.tensor([ids[i + 1 : i + 17]])
        losses.append(model(x, y)[1].item())
    assert f"validation loss {np.mean(losses):.4f} (all {len(losses)} blocks" in stdout
    log = (folder / "run" / "log.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["val_loss"] == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--text", "nowhere.txt"],
            "--text: 'nowhere.txt' cannot be read (No such file or directory); give ",
        ),
        (["--text", "."], "--text: '.' cannot be read (Is a directory); give the path of a text"),
        (["--text", "broken.txt"], "--text: 'broken.txt' is not UTF-8 (byte 0xff: "),
        (["--text", "short.txt"], "--text has 9 characters; give 170 or more for --block 16"),
        (
            ["--text", "text.txt", "--prompt", "B€"],
            "--prompt: character '€' at position 1 is not among the",
        ),
        (
            ["--text", "text.txt", "--temperature", "-1"],
            "--temperature is -1.0; give a finite number, 0 or more",
        ),
        (
            ["--text", "text.txt", "--temperature", "1e-320"],
            "char_gpt: --temperature is 1e-320; give 0, for the likeliest, or at least",
        ),
        (["--text", "text.txt", "--batch", "100000000"], "--batch is 100000000, and the text has "),
        (["--text", "text.txt", "--top_k", "0"], "--top_k is 0; give at least 1"),
        (["--text", "text.txt", "--length", "-1"], "--length is -1; give at least 1"),
        (["--text", "text.txt", "--samples", "0"], "--samples is 0; give at least 1"),
        (["--text", "text.txt", "--heads", "5"], "--heads 5 does not divide --width 32; give a divisor"),
        (["--text", "text.txt", "--batch", "0"], "--batch is 0; give at least 1"),
        (["--text", "text.txt", "--dropout", "1.5"], "--dropout is 1.5; it is the probability to drop"),
        (["--text", "text.txt", "--init_std", "-1"], "--init_std is -1.0; give a finite number, 0 or more"),
        (["--text", "text.txt", "--lr", "nan"], "--lr is nan; give a finite number, 0 or more"),
        (["--text", "text.txt", "--lr", "inf"], "--lr is inf; give a finite number, 0 or more"),
        (["--text", "text.txt", "--seed", "-1"], "--seed is -1; give at least 0"),
        (["--out", "text.txt/in"], "--out text.txt/in: text.txt is no folder; name another"),
        (
            ["--resume", "--out", "run", "--text", "other.txt"],
            ".txt; leave --text out, or name another --out",
        ),
        (["--resume", "--out", "run", "--width", "64"], "has 32; leave --width out"),
        (["--resume", "--out", "run", "--dropout", "0"], "has 0.1; leave --dropout out"),
        (["--resume", "--out", "run", "--prompt", "%"], "--prompt: character '%' at"),
        (["--resume", "--out", "foreign"], "the run in foreign is of another program; name another --out"),
        (["--out", "run"], "run holds a run already; go on with --resume"),
    ],
)
def test_char_gpt_refuses_in_one_line_before_anything_is_trained(written, monkeypatch, arguments, says):
    folder, _ = written
    monkeypatch.chdir(folder)
    (folder / "foreign").mkdir(exist_ok=True)
    save_checkpoint(folder / "foreign" / "step-00000001.safetensors", nn.Linear(1, 1), config={"steps": 1})
    before = sorted(folder.rglob("*"))
    smoke = [] if "--out" in arguments else ["--smoke"]
    status, _, stderr = char_gpt(*arguments, *smoke)
    assert (status, stderr.count("\n")) == (2, 1), stderr
    assert stderr.startswith("char_gpt: ")
    assert says in stderr
    assert sorted(folder.rglob("*")) == before
