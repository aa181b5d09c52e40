"""Writes the model beside this file and what transformers computes with it (transformers 4.57).

    python tests/compat/marian_files/make_files.py

It has learned a little, so that its outputs depend on the source.
"""

import io
import json
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
TEXT = {
    "source": ["das ist ein Haus", "der Hund sieht das rote Haus", "wo ist ein roter Hund ?"],
    "target": ["this is a house", "the dog sees the red house", "where is a red dog ?"],
}
LINES = [*TEXT["source"], "das Haus", "Hund Hund Hund", "ein großer Xaver"]
BEAMS = 4
LONGEST = 30
STEPS = 450


def write_model() -> None:
    """Write the model as a folder of the hub is."""
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    pieces = {}
    for side, lines in TEXT.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines * 3),
            model_writer=model,
            vocab_size=40,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            minloglevel=2,
        )
        (HERE / f"{side}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces |= dict.fromkeys(processor.id_to_piece(i) for i in range(3, len(processor)))
    symbols = ["</s>", "<unk>", *pieces, "<pad>"]
    (HERE / "vocab.json").write_text(json.dumps({symbol: i for i, symbol in enumerate(symbols)}))
    languages = {"source_lang": "deu", "target_lang": "eng"}
    (HERE / "tokenizer_config.json").write_text(json.dumps(languages))
    config = MarianConfig(
        vocab_size=len(symbols),
        d_model=16,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=len(symbols) - 1,
        decoder_start_token_id=len(symbols) - 1,
        eos_token_id=0,
        forced_eos_token_id=0,
    )
    torch.manual_seed(1)
    model = MarianMTModel(config)
    with torch.no_grad():
        model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    tokenizer = MarianTokenizer.from_pretrained(HERE)
    pairs = zip(TEXT["source"], TEXT["target"], strict=True)
    batches = [tokenizer(s, text_target=t, return_tensors="pt") for s, t in pairs]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step in range(STEPS):
        batch = batches[step % len(batches)]
        model(input_ids=batch["input_ids"], labels=batch["labels"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(HERE, safe_serialization=True)
    (HERE / "generation_config.json").unlink()


def write_outputs() -> None:
    """Write ids, logits of some targets, and what is found with one beam and with several."""
    from transformers import MarianMTModel, MarianTokenizer

    model = MarianMTModel.from_pretrained(HERE).eval()
    tokenizer = MarianTokenizer.from_pretrained(HERE)
    pad = model.config.pad_token_id
    cases = []
    logits = {}
    for number, line in enumerate(LINES):
        ids = torch.tensor([tokenizer.encode(line)])
        case = {"line": line, "ids": ids[0].tolist()}
        for beams in (1, BEAMS):
            options = {"num_beams": beams, "max_length": LONGEST, "bad_words_ids": [[pad]]}
            options |= {"early_stopping": True} if beams > 1 else {}
            out = model.generate(
                ids, **options, do_sample=False, return_dict_in_generate=True, output_scores=True
            )
            tokens = out.sequences[0]
            case[f"beam{beams}"] = {
                "tokens": tokens[1:].tolist(),
                "text": tokenizer.decode(tokens, skip_special_tokens=True),
                "score": None if beams == 1 else float(out.sequences_scores[0]),
            }
        with torch.no_grad():
            read = tokens[None, :-1]
            logits[str(number)] = model(input_ids=ids, decoder_input_ids=read).logits[0]
        cases.append(case)
    lines = [json.dumps(case, ensure_ascii=False) for case in cases]
    (HERE / "outputs.jsonl").write_text("\n".join([*lines, ""]), "utf-8")
    save_file(logits, HERE / "logits.safetensors")


if __name__ == "__main__":
    write_model()
    write_outputs()
