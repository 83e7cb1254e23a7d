"""A text encoder of the BERT family, and the vectors that it gives to sentences.

Devlin et al. 2019 (BERT), §3: the paper's encoder with learned positions, a token type that is added to each
embedding, a LayerNorm before the first layer, and GELU.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

import numpy as np

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import Tensor, nn
from models.bert import bert_names, bert_settings, bert_tensors, bert_tokenizer
from models.draft import evaluating
from models.masks import check_ids, padding_mask
from models.pretrained import fill, folder_path
from models.transformer import Encoder, Weights

__all__ = ["TextEncoder", "TextEncoderConfig"]


@dataclass(frozen=True)
class TextEncoderConfig:
    """The sizes and switches of a text encoder. Defaults: BERT's base model.

    max_len: how many positions there are. max_seq_length: after how many tokens `embed` cuts a text, with
    None max_len. pooling: how the vectors of a text's tokens become one: "mean", "max", or "cls", the first.

    Raises: ValueError and TypeError for what cannot be meant, by the rules of sizes.py.
    Source: Devlin et al. 2019, §3; Hugging Face's BertConfig.
    """

    vocab_size: int = 30522
    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072
    max_len: int = 512
    n_types: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    eps: float = 1e-12
    pad_id: int = 0
    pooling: str = "mean"
    max_seq_length: int | None = None


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden.masked_fill(~mask, -math.inf).amax(1).masked_fill(~mask.any(1), 0.0)


def _first(hidden: Tensor, mask: Tensor) -> Tensor:
    return hidden[:, 0] * mask[:, 0]


# hidden states (B, T, C) and mask (B, T, 1) → (B, C)
POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mean": _mean, "max": _max, "cls": _first}


class TextEncoder(nn.Module):
    """h = Encoder(LayerNorm(E[id] + P[position] + S[type])), post-LN with GELU: BERT without its heads.

    tokenizer: a `tokenizers.Tokenizer`, which `embed` and `tokenize` need.

    Shapes: ids (B, T) → hidden states (B, T, d_model)
    Raises: ValueError for an unknown pooling, a d_model that n_heads does not divide, a tokenizer of another
    or an empty vocabulary, ids of another shape or longer than max_len; IndexError for an id outside the
    vocabulary.
    Source: Devlin et al. 2019, §3; the paper, §3.1. Initial values: N(0, 0.02²), biases 0, as BERT's.
    """

    def __init__(self, config: TextEncoderConfig, tokenizer: Any = None) -> None:
        super().__init__()
        self.config = c = config
        self.tokenizer = None if tokenizer is None else _prepared(tokenizer, c)
        self.token_embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.position_embedding = nn.Embedding(c.max_len, c.d_model)
        self.type_embedding = nn.Embedding(c.n_types, c.d_model)
        self.norm = nn.LayerNorm(c.d_model, c.eps)
        kind = {"dropout": c.dropout, "attention_dropout": c.attention_dropout, "eps": c.eps}
        self.encoder = Encoder(c.n_layers, c.d_model, c.n_heads, c.d_ff, activation="gelu", **kind)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> TextEncoder:
        """The model of a folder with config.json, model.safetensors and tokenizer.json, in evaluation mode.

        The weights have the names of Hugging Face's BertModel, with or without "bert." before them. Ignored
        are the pooler, heads (cls, and beside "bert." all else) and constant ids; any other tensor is an
        error. As in sentence-transformers, the pooling that modules.json names (without it: 1_Pooling) says
        how sentence vectors are made (without any: the mean), and sentence_bert_config.json where texts are
        cut (without it: at max_len). A default prompt is refused; tokenizer_config.json is not read.
        Raises: FileNotFoundError for what is not there; ModuleNotFoundError without tokenizers; ValueError
        for another model_type, settings that this encoder has not, and naming the tensors that are missing,
        unexpected, there twice, of another shape, or no finite floats.
        Source: Hugging Face's from_pretrained, and its files. Differs: it loads nothing from the network.
        """
        path = folder_path(who := "TextEncoder.from_pretrained", folder)
        settings = bert_settings(who, path, asdict(TextEncoderConfig()))
        config = TextEncoderConfig(**settings)
        tokenizer, tensors = bert_tokenizer(who, path), bert_tensors(who, path, settings)
        model = cls(config, tokenizer)
        fill(who, model, tensors, names=bert_names(config.n_layers))
        return model.eval()

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        *,
        weights: Weights | None = None,
    ) -> Tensor:
        """Ids (B, T), types of the tokens (B, T), all 0 if not given → hidden states (B, T, d_model)

        A mask not given is made from the ids: padding. One of two axes is (B, T), True at the tokens that
        may be attended to. Each layer's attention weights are appended to `weights`.
        """
        x = self._embed(ids, token_types)
        if mask is None:
            mask = padding_mask(ids, self.config.pad_id)
        elif mask.ndim == 2:
            mask = mask[:, None, None, :]  # (B, 1, 1, T)
        hidden: Tensor = self.encoder(x, mask, weights=weights)
        return hidden

    def _embed(self, ids: Tensor, token_types: Tensor | None) -> Tensor:
        check_ids("TextEncoder", ids=ids, token_types=token_types)
        if ids.shape[1] > self.config.max_len:
            raise ValueError(
                f"TextEncoder: {ids.shape[1]} ids, but max_len is {self.config.max_len}; shorten the text"
            )
        places = self.position_embedding.weight[: ids.shape[1]]  # (T, C)
        types = self.type_embedding.weight[0] if token_types is None else self.type_embedding(token_types)
        x = self.norm(self.token_embedding(ids) + (places + types))  # (B, T, C)
        return F.dropout(x, self.config.dropout, self.training)

    # --- sentences ------------------------------------------------------------------------------------------

    def embed(self, texts: Sequence[str], batch_size: int = 32, normalize: bool = True) -> Tensor:
        """The vector of each text; normalize: of length 1, so that a @ b.T holds the cosines between them.

        A text is cut after `config.max_seq_length` tokens, special ones among them, at the end that the
        tokenizer's truncation names; nothing is said, as in sentence-transformers. Nothing is recorded, and
        the model is in evaluation mode meanwhile; for fine-tuning, `model.pool(model(ids, mask), mask)` of
        what `tokenize` gives is the same with gradients.

        Shapes: N texts → (N, d_model)
        Raises: TypeError for what is no list of strings and a batch_size that is no integer; ValueError for
        one below 1, text that is no Unicode or, without [UNK], out of vocabulary, and a tokenizer of other
        token types than 0; RuntimeError without a tokenizer.
        Source: Reimers & Gurevych 2019 (Sentence-BERT), §3.
        """
        if not isinstance(batch_size, Integral):
            raise TypeError(f"TextEncoder.embed: batch_size is {batch_size!r}; give an integer of 1 or more")
        if batch_size < 1:
            raise ValueError(f"TextEncoder.embed: batch_size is {batch_size}; make it at least 1")
        rows = self._rows("embed", texts)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # so that little of a batch is padding
        vectors = np.empty((len(rows), self.config.d_model), self.norm.weight.dtype)
        with evaluating(self):
            for start in range(0, len(rows), batch_size):
                chosen = order[start : start + batch_size]
                ids, mask = self._padded([rows[i] for i in chosen])
                vectors[chosen] = self.pool(self(ids, mask), mask).numpy()
        found = mt.from_numpy(vectors)
        return F.normalize(found, dim=-1) if normalize else found

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The ids of the texts, filled up with padding, and the mask for `forward`.

        Shapes: B texts → (B, T), (B, T)
        Raises: as `embed`.
        Source: the tokenizers library, whose ids they are.
        """
        return self._padded(self._rows("tokenize", texts))

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """One vector of each text's tokens, by `config.pooling`; 0 where there is no token.

        Shapes: hidden (B, T, d_model), mask (B, T) → (B, d_model)
        Raises: ValueError for shapes that do not fit, where a mean or a maximum reads the mask.
        Source: Reimers & Gurevych 2019 (Sentence-BERT), §3.
        """
        return POOLINGS[self.config.pooling](hidden, mask.unsqueeze(-1))

    def _rows(self, who: str, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        who = f"TextEncoder.{who}"
        if self.tokenizer is None:
            raise RuntimeError(
                f"{who}: there is no tokenizer; use from_pretrained, or make the model with one"
            )
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            what = type(texts).__name__
            raise TypeError(f"{who}: texts is {what}; give a list of strings, for one of them [text]")
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"{who}: text {i} is {type(text).__name__}; give strings")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"{who}: text {i} has half a character {text[error.start]!r} at {error.start}; decode it "
                    f"as what it was written in"
                ) from None
        try:
            encodings = self.tokenizer.encode_batch(list(texts))
        except Exception as error:  # the library raises nothing more special
            raise ValueError(
                f"{who}: the tokenizer cannot encode these texts ({error}); give it an unknown token, or "
                f"texts of its vocabulary"
            ) from error
        if any(any(encoding.type_ids) for encoding in encodings):
            raise ValueError(
                f"{who}: the tokenizer gives token types other than 0; give a tokenizer whose post-processor "
                f"does not, or call the model with token_types"
            )
        return [encoding.ids for encoding in encodings]

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Ids (B, T), T ≥ 1, and mask (B, T), which the ids do not tell: [PAD] may stand within a text."""
        lengths = np.array([len(row) for row in rows], np.int64)
        mask = np.arange(lengths.max(initial=1)) < lengths[:, None]  # (B, T)
        ids = np.full(mask.shape, self.config.pad_id, np.int64)
        ids[mask] = [i for row in rows for i in row]
        return mt.from_numpy(ids), mt.from_numpy(mask)


def _prepared(tokenizer: Any, config: TextEncoderConfig) -> Any:
    """A copy that pads nothing and cuts texts where the config says, at the end that it did."""
    longest = min(config.max_len, config.max_len if config.max_seq_length is None else config.max_seq_length)
    if not hasattr(tokenizer, "num_special_tokens_to_add"):
        raise TypeError(f"TextEncoder: tokenizer is {tokenizer!r:.60}; give a tokenizers.Tokenizer, or None")
    special, vocabulary = tokenizer.num_special_tokens_to_add(False), tokenizer.get_vocab()
    if not vocabulary:
        raise ValueError(
            "TextEncoder: the tokenizer has an empty vocabulary; give the one that belongs to the model"
        )
    if longest < max(1, special):  # then tokenizers would cut nothing
        raise ValueError(
            f"TextEncoder: texts are cut after {longest} tokens, and {special} are special; make "
            f"max_seq_length and max_len larger"
        )
    largest = max(vocabulary.values())
    if largest >= config.vocab_size:
        raise ValueError(
            f"TextEncoder: the tokenizer has ids up to {largest}, but vocab_size is {config.vocab_size}; "
            f"give the tokenizer that belongs to the model"
        )
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest, direction=(tokenizer.truncation or {}).get("direction", "right"))
    return tokenizer
