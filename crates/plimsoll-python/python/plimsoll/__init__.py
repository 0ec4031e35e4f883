"""Batches of text, chats and pairs as torch tensors, from the loader of plimsoll.

    loader = plimsoll.DataLoader("rows-*.jsonl", tokenizer="model/", kind="text", max_len=1024, batch_size=8)
    for batch in loader:
        loss = model(**batch).loss
"""

from ._loader import DataLoader

__all__ = ["DataLoader"]
