"""M2M100 by its formulas, one sentence at a time, under Hugging Face's names, and its folder.

Written from the papers and the files' format, with nothing of relu_nmt: Vaswani et al. 2017 with
norms before the sublayers, Fan et al. 2021 for the codes of languages, fairseq's positions.
"""

import io
import itertools
import json
import math

import sentencepiece
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

PAIRS = [
    ("das ist ein Haus", "this is a house"),
    ("der Hund sieht das rote Haus", "the dog sees the red house"),
    ("wo ist ein roter Hund ?", "where is a red dog ?"),
]
LINES = [*(source for source, _ in PAIRS), "das Haus", "Hund Hund Hund", "ein großer Xaver"]
CONFIG = {
    "model_type": "m2m_100",
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "activation_function": "relu",
    "scale_embedding": True,
    "dropout": 0.1,
    "encoder_layerdrop": 0.05,
    "decoder_layerdrop": 0.05,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
END = 2
UNKNOWN = 3
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
UNUSED = 5


class PlainM2M100:
    """Weights of a random model, and what it computes.

    Args:
        codes: the symbols of the languages.
    """

    def __init__(self, codes):
        content = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain.from_iterable(PAIRS * 3),
            model_writer=content,
            vocab_size=60,
            model_type="bpe",
            hard_vocab_limit=False,
            minloglevel=2,
        )
        self.pieces = content.getvalue()
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=self.pieces)
        learned = [self.processor.id_to_piece(i) for i in range(3, len(self.processor))]
        self.codes = codes
        self.vocabulary = [*SPECIAL, *learned]
        self.ids = {symbol: i for i, symbol in enumerate([*self.vocabulary, *codes])}
        torch.manual_seed(1)
        self.size = len(self.ids) + UNUSED
        self.weights = {"model.shared.weight": torch.randn(self.size, 16) * 0.25}
        for side in ("encoder", "decoder"):
            self._add_norm(f"model.{side}.layer_norm")
            for layer in range(CONFIG[f"{side}_layers"]):
                self._add_layer(f"model.{side}.layers.{layer}", side)

    def _add_layer(self, name, side):
        attentions = ["self_attn"] if side == "encoder" else ["self_attn", "encoder_attn"]
        for kind in attentions:
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                self._add_linear(f"{name}.{kind}.{part}", 16, 16)
            self._add_norm(f"{name}.{kind}_layer_norm")
        inner = CONFIG[f"{side}_ffn_dim"]
        self._add_linear(f"{name}.fc1", 16, inner)
        self._add_linear(f"{name}.fc2", inner, 16)
        self._add_norm(f"{name}.final_layer_norm")

    def _add_linear(self, name, width, outputs):
        self.weights[f"{name}.weight"] = torch.randn(outputs, width) / math.sqrt(width)
        self.weights[f"{name}.bias"] = torch.randn(outputs) * 0.1

    def _add_norm(self, name):
        self.weights[f"{name}.weight"] = 1 + torch.randn(16) * 0.1
        self.weights[f"{name}.bias"] = torch.randn(16) * 0.1

    # ------------------------------------------------------------------- the formulas

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        centered = x - x.mean(-1, keepdim=True)
        scaled = centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, name, x, memory, heads, causal):
        """Return [N, D] of queries x [N, D] and a memory [M, D]."""
        q, k, v = (
            self.linear(f"{name}.{part}_proj", states).unflatten(1, (heads, -1)).transpose(0, 1)
            for part, states in (("q", x), ("k", memory), ("v", memory))
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(q.size(2))
        if causal:
            later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        values = (scores.softmax(2) @ v).transpose(0, 1).flatten(1)
        return self.linear(f"{name}.out_proj", values)

    def embedded(self, ids):
        """Return [N, D]: embeddings times sqrt(D), and waves from the position 2 on."""
        half = 8
        rates = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
        angles = torch.arange(2, 2 + len(ids))[:, None] * rates
        waves = torch.cat([angles.sin(), angles.cos()], dim=1)
        return self.weights["model.shared.weight"][ids] * math.sqrt(16) + waves

    def stack(self, side, ids, memory=None):
        """Return the states [N, D] of token ids."""
        x = self.embedded(ids)
        heads = CONFIG[f"{side}_attention_heads"]
        for layer in range(CONFIG[f"{side}_layers"]):
            name = f"model.{side}.layers.{layer}"
            y = self.norm(f"{name}.self_attn_layer_norm", x)
            x = x + self.attention(f"{name}.self_attn", y, y, heads, side == "decoder")
            if memory is not None:
                y = self.norm(f"{name}.encoder_attn_layer_norm", x)
                x = x + self.attention(f"{name}.encoder_attn", y, memory, heads, False)
            y = self.norm(f"{name}.final_layer_norm", x)
            x = x + self.linear(f"{name}.fc2", F.relu(self.linear(f"{name}.fc1", y)))
        return self.norm(f"model.{side}.layer_norm", x)

    def logits(self, source, read):
        """Return [T, V] for the ids of a source and the decoder's input."""
        states = self.stack("decoder", read, self.stack("encoder", source))
        return states @ self.weights["model.shared.weight"].T

    # ------------------------------------------------------------------- text and search

    def encode(self, code, text):
        """Return the ids of a text: the code, the pieces, the end."""
        pieces = self.processor.encode(text, out_type=str)
        return [self.ids[code], *(self.ids.get(piece, UNKNOWN) for piece in pieces), END]

    def learn(self, source, target, steps=250):
        """Train on the pairs."""
        for weight in self.weights.values():
            weight.requires_grad_()
        optimizer = torch.optim.Adam(self.weights.values(), lr=0.005)
        pairs = [(self.encode(source, text), self.encode(target, other)) for text, other in PAIRS]
        for step in range(steps):
            ids, labels = pairs[step % len(pairs)]
            loss = F.cross_entropy(self.logits(ids, [END, *labels[:-1]]), torch.tensor(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.weights = {name: weight.detach() for name, weight in self.weights.items()}

    @torch.no_grad()
    def search(self, source, code, beams, longest):
        """Return the best tokens behind the start, and their score, by beam search.

        The first token is the code, which costs nothing but counts as a token (transformers'
        ``forced_bos_token_id``). It ends with as many ended hypotheses as beams. Behind the longest
        output comes the end.
        """
        live = [(0.0, [self.ids[code]])]
        ended = []
        while len(ended) < beams and live:
            longer = []
            for total, tokens in live:
                shares = self.logits(source, [END, *tokens])[-1].log_softmax(0)
                shares[:2] = -torch.inf  # neither start nor padding
                if len(tokens) == longest:
                    shares[END + 1 :] = -torch.inf
                longer += [
                    (total + float(x), [*tokens, i]) for i, x in enumerate(shares) if x > -torch.inf
                ]
            longer = sorted(longer, key=lambda beam: -beam[0])[: 2 * beams]
            ended += [
                (total / len(tokens), tokens)
                for total, tokens in longer[:beams]
                if tokens[-1] == END
            ]
            live = [beam for beam in longer if beam[1][-1] != END][:beams]
        score, tokens = max(ended)
        return tokens, score

    # ------------------------------------------------------------------- the folder

    def save(self, folder, nllb=False):
        """Write the folder. NLLB's folder has no vocab.json, and lists its codes elsewhere."""
        folder.mkdir()
        config = CONFIG | {"vocab_size": self.size}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "generation_config.json").write_text(json.dumps({"num_beams": 5}))
        (folder / "sentencepiece.bpe.model").write_bytes(self.pieces)
        added = {}
        if nllb:
            names = {"additional_special_tokens": self.codes}
            (folder / "special_tokens_map.json").write_text(json.dumps(names))
        else:
            ids = {symbol: i for i, symbol in enumerate(self.vocabulary)}
            (folder / "vocab.json").write_text(json.dumps(ids), "utf-8")
            contents = {i: {"content": symbol} for symbol, i in self.ids.items() if i < 4}
            contents |= {self.ids[code]: {"content": code} for code in self.codes}
            added = {"added_tokens_decoder": contents}
        (folder / "tokenizer_config.json").write_text(json.dumps(added))
        save_file(self.weights, folder / "model.safetensors")


def changed(name, **values):
    """Return a function that changes values in a JSON file of a folder."""

    def change(folder):
        content = json.loads((folder / name).read_text("utf-8"))
        (folder / name).write_text(json.dumps({**content, **values}), "utf-8")

    return change
