"""Files, tokenizers and models for the tests."""

import json
import tempfile
import unittest
from pathlib import Path

import plimsoll

PAD, EOS, UNK, FIRST, WORDS = 0, 1, 2, 9, 200
MARKS = ["<pad>", "</s>", "<unk>", "<user>", "<assistant>", "<end>", "<system>", "User:", "Assistant:"]
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def folder(path: Path) -> Path:
    """A model folder without a model: words `w0`, `w1`, ... each a token."""
    special = [
        dict(id=i, content=MARKS[i], single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        for i in (PAD, EOS)
    ]
    vocab = {mark: i for i, mark in enumerate(MARKS)} | {f"w{i}": FIRST + i for i in range(WORDS)}
    tokenizer = dict(
        version="1.0", truncation=None, padding=None, added_tokens=special, normalizer=None,
        pre_tokenizer={"type": "WhitespaceSplit"}, post_processor=None, decoder=None,
        model={"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    )
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    texts = {"eos_token": "</s>", "pad_token": {"content": "<pad>"}, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(texts))
    (path / "config.json").write_text(json.dumps({"vocab_size": FIRST + WORDS}))
    return path


def words(first: int, count: int) -> str:
    return " ".join(f"w{(first + k) % WORDS}" for k in range(count))


def ids(first: int, count: int) -> tuple[int, ...]:
    return tuple(FIRST + (first + k) % WORDS for k in range(count))


class DataCase(unittest.TestCase):
    """A folder with the three kinds of data, 97 rows each, of lengths that vary."""

    rows = 97

    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.dir = Path(held.name)
        self.model = folder(self.dir / "model")
        self.write("text", lambda i: {"text": words(i, 1 + i % 13)})
        self.write("pairs", lambda i: {"source": words(i, 1 + i % 5), "target": words(i + 7, 1 + i % 3)})
        self.write("chat", lambda i: {"messages": [
            {"role": "user", "content": words(i, 1 + i % 4)},
            {"role": "assistant", "content": words(i + 3, 1 + i % 6)},
        ]})

    def write(self, kind, row):
        lines = "".join(json.dumps(row(i)) + "\n" for i in range(self.rows))
        (self.dir / f"{kind}.jsonl").write_text(lines)

    def loader(self, kind="text", **settings):
        wanted = dict(tokenizer=self.model, kind=kind, max_len=16, batch_size=5, threads=2) | settings
        return plimsoll.DataLoader(self.dir / f"{kind}.jsonl", **wanted)


def plain(batch):
    """A batch as values that can be compared."""
    return {name: (str(tensor.dtype), tensor.tolist()) for name, tensor in batch.items()}


def stream(loader, batches=None):
    """The next batches as values; all of one `for` if no number is given."""
    found = []
    if batches == 0:
        return found
    for batch in loader:
        found.append(plain(batch))
        if len(found) == batches:
            break
    return found
