"""Tokens of conversations: which control tokens there are is said beside the text, not in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.tokenizers.vocabulary import ChatFacts, Vocabulary

# How control tokens are spelled for a tokenizer that is to take them from nowhere else: between
# characters that Unicode keeps for a program's own use.
ALIAS = "\ufdd0{}\ufdd1"


class Piece(NamedTuple):
    """Part of a text: a control token, or what is text whatever it spells."""

    text: str
    control: bool = False


class Encoded(NamedTuple):
    """Tokens, and where they are in the text.

    Arguments:
        tokens: (T,) ids.
        places: (T, 2) the first character of each and the one behind its last.
    """

    tokens: npt.NDArray[np.integer[Any]]
    places: npt.NDArray[np.int64]


def encode_bytes(pieces: Sequence[Piece], separator: int) -> Encoded:
    """Encode pieces as bytes; a control token is the separator."""
    tokens: list[npt.NDArray[np.uint16]] = [np.empty(0, np.uint16)]
    places: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    at = 0
    for text, control in pieces:
        if control:
            tokens.append(np.array([separator], np.uint16))
            places.append(np.array([at], np.int64))
        else:
            data = np.frombuffer(text.encode(), np.uint8)
            tokens.append(data.astype(np.uint16))
            # All bytes of a character but its first are 10xxxxxx.
            places.append(at - 1 + np.cumsum((data & 0xC0) != 0x80, dtype=np.int64))
        at += len(text)
    first = np.concatenate(places)
    if not len(first):
        return Encoded(np.concatenate(tokens), np.empty((0, 2), np.int64))
    # A control token is as long as its text.
    after = np.append(first[1:], at)
    last = np.where(after > first, after, first + 1)
    return Encoded(np.concatenate(tokens), np.stack([first, last], axis=1))


class ChatEncoder:
    """A Hugging Face tokenizer whose control tokens are spelled as no text can spell them.

    Encoding a text with them is encoding it as a whole, with all that the tokenizer does at borders
    (normalization, spaces in front, spaces that a token takes away), and what messages say can be
    no control token.

    Raises:
        SetpointError: the tokenizer gives its tokens other ids when they are spelled otherwise.
    """

    def __init__(self, vocabulary: Vocabulary, facts: ChatFacts) -> None:
        from tokenizers import Tokenizer

        self.aliases = {text: ALIAS.format(at) for at, text in enumerate(facts.controls)}
        self.tokenizer = Tokenizer.from_str(_respelled(vocabulary.text, self.aliases))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        for text, alias in self.aliases.items():
            if self.tokenizer.token_to_id(alias) != facts.tokens[text]:
                raise SetpointError(
                    f"tokenizer.path: the control token {text} of {vocabulary.where} cannot be "
                    f"kept apart from text, so conversations cannot be encoded with it"
                )

    def encode(self, pieces: Sequence[Piece]) -> Encoded:
        """Encode a text, with places in the text as it is spelled in `pieces`."""
        spelled = "".join(self.aliases[text] if control else text for text, control in pieces)
        found = self.tokenizer.encode(spelled, add_special_tokens=False)
        places = np.array(found.offsets, np.int64).reshape(-1, 2)
        # Where each piece begins as it is given and as it is spelled here.
        given = np.cumsum([0, *(len(piece.text) for piece in pieces)])
        here = np.cumsum(
            [0, *(len(self.aliases[text]) if control else len(text) for text, control in pieces)]
        )
        first = np.maximum(np.searchsorted(here, places[:, 0], "right") - 1, 0)
        last = np.maximum(np.searchsorted(here, places[:, 1], "left") - 1, 0)
        controls = np.array([*(piece.control for piece in pieces), False])
        # A control token is whole in one piece, of which its end is that of the piece.
        begins = given[first] + np.where(controls[first], 0, places[:, 0] - here[first])
        ends = np.where(
            controls[last],
            given[np.minimum(last + 1, len(given) - 1)],
            given[last] + places[:, 1] - here[last],
        )
        return Encoded(np.array(found.ids, np.int64), np.stack([begins, ends], axis=1))


def _respelled(text: str, aliases: Mapping[str, str]) -> str:
    """`tokenizer.json` with other texts for control tokens, and without what it adds at the ends.

    What comes after encoding is left out: it would take blanks out of the places of tokens.
    """
    import json

    found = json.loads(text)
    found["post_processor"] = found["truncation"] = found["padding"] = None
    for each in found.get("added_tokens", []):
        each["content"] = aliases.get(each["content"], each["content"])
    model = found["model"]
    vocab = model["vocab"]
    if isinstance(vocab, list):
        model["vocab"] = [[aliases.get(piece[0], piece[0]), *piece[1:]] for piece in vocab]
    else:
        model["vocab"] = {aliases.get(token, token): number for token, number in vocab.items()}
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = aliases.get(model["unk_token"], model["unk_token"])
    return json.dumps(found, ensure_ascii=False)
