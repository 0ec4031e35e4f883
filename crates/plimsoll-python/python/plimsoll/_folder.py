"""What a model folder says about its tokens: the tokenizer's file, special ids, the chat template.

`plimsoll train` takes these ids from config.json; so does this, and where that says nothing, tokenizer_config.json.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _plimsoll


@dataclass(frozen=True)
class Tokens:
    """How text becomes tokens, in values that a pickle can hold."""

    path: str
    vocab: int | None
    eos_id: int
    pad_id: int
    bos_id: int | None
    template: tuple[str, dict[str, str]] | None

    def most_id(self) -> int | None:
        """The highest id that a sample can have, where the folder says how many there are."""
        ids = (self.eos_id, self.pad_id, self.bos_id or 0)
        return None if self.vocab is None else max(self.vocab - 1, *ids)

    def fingerprint(self) -> str:
        """Tells this way from others: the tokenizer's file, the ids that are put into samples, the template."""
        digest = hashlib.blake2b(Path(self.path).read_bytes(), digest_size=8)
        digest.update(json.dumps([self.eos_id, self.bos_id, self.template], sort_keys=True).encode())
        return digest.hexdigest()


def find(
    tokenizer: str | Path,
    kind: str,
    *,
    eos_id: int | None,
    pad_id: int | None,
    bos_id: int | None,
    chat_template: str | None,
) -> Tokens:
    """Tokens of a folder, or of a tokenizer.json alone. What is given goes before what is found."""
    path = Path(tokenizer)
    folder = path if path.is_dir() else path.parent
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"`{path}` is not there; expected a tokenizer.json, or a folder with one")
    config = _object(folder / "config.json")
    texts = _object(folder / "tokenizer_config.json")
    ids = _Ids(path)

    def found(name: str, given: int | None) -> int | None:
        if given is not None:
            return given
        said = config.get(f"{name}_token_id")
        if isinstance(said, list):
            said = said[0] if said else None
        return said if said is not None else ids.of(texts.get(f"{name}_token"))

    eos = found("eos", eos_id)
    if eos is None:
        raise ValueError(
            f"`{folder}` does not say which token ends a sequence: no `eos_token_id` in config.json and no "
            "`eos_token` in tokenizer_config.json; give `eos_id`"
        )
    pad = found("pad", pad_id)
    return Tokens(
        path=str(path),
        vocab=config.get("vocab_size"),
        eos_id=eos,
        pad_id=eos if pad is None else pad,
        bos_id=bos_id if bos_id is not None else config.get("bos_token_id"),
        template=_template(folder, chat_template) if kind == "chat" else None,
    )


def _template(folder: Path, given: str | None) -> tuple[str, dict[str, str]] | None:
    found = _plimsoll.chat_template(folder)
    if given is None:
        return found
    names = {name: text for name, value in _object(folder / "tokenizer_config.json").items()
             if name.endswith("_token") and (text := _text(value)) is not None}
    return given, names


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"`{path}` is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"`{path}`: expected an object, found {type(value).__name__}")
    return value


def _text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


class _Ids:
    """Ids of tokens by their text; the file is read when the first is asked for."""

    def __init__(self, path: Path):
        self._path = path
        self._ids: dict[str, int] | None = None

    def of(self, value: Any) -> int | None:
        text = _text(value)
        if text is None:
            return None
        if self._ids is None:
            self._ids = {token["content"]: token["id"] for token in _object(self._path).get("added_tokens", [])}
        return self._ids.get(text)
