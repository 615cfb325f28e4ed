"""Conversations in files of records, as tokens with a mask over the answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.document import Document
from setpoint.data.sources.chat_template import ChatTemplate
from setpoint.data.sources.config import Conversations, Text
from setpoint.data.sources.files import inputs_of
from setpoint.data.sources.formats import conversation_files, record_format, text_files
from setpoint.data.sources.messages import Conversation, read_row
from setpoint.data.sources.named_templates import fitting_template
from setpoint.data.sources.records import Row, read_rows
from setpoint.data.sources.suffixes import ARROW, PARQUET, TEXT, format_of
from setpoint.data.sources.token_rows import RowError, TokenizedRow
from setpoint.data.tokenizers.tokenizer import ChatTokenizer, Tokenizer
from setpoint.data.tokenizers.vocabulary import ChatFacts


def conversations_in(config: Text) -> Conversations | None:
    """Read files as conversations or their tokens, if the first row has no text and is one.

    Returns:
        a section with their paths, and with shifted_labels where only these labels fit; None: they
        are something else, or cannot be read, and reading them says why.
    """
    try:
        for name, file in text_files(config, "paths").checked().items():
            kind = config.format or format_of(str(file))
            if kind == TEXT:
                return None
            row = next(read_rows(name, file, kind, where="text"))
            if config.field in row.values:
                return None
            filled, found = kind in (PARQUET, ARROW), Conversations(paths=config.paths)
            try:
                read_row(row.values, filled)
            except RowError:
                read_row(row.values, filled, shifted=True)
                found.shifted_labels = True
            return found
    except (SetpointError, RowError):
        return None
    return None


class ConversationsSource:
    """Documents of which each is a conversation: `setpoint.data.document.TokenSource`.

    Arguments:
        where: the path of `config` in the job, for messages.
    """

    def __init__(self, config: Conversations, *, where: str = "data.sources") -> None:
        self.config = config
        self.where = where

    def tokenized(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """Read the files, and encode each conversation under the chat template.

        Raises:
            SetpointError: a file cannot be read, a row is no conversation, or the template or its
                tokens are missing; with the file, the row and the field.
        """
        template: ChatTemplate | None = None
        rows = kept = 0
        for row, filled in self._rows():
            rows += 1
            try:
                found = read_row(row.values, filled, self.config.shifted_labels)
                if isinstance(found, TokenizedRow):
                    documents = self._given(row.name, found)
                else:
                    if template is None:
                        template = self.template(tokenizer)
                    encoder = cast(ChatTokenizer, tokenizer)
                    documents = self._encoded(row.name, found, template, encoder)
                for document in documents:
                    kept += 1
                    yield document
            except RowError as error:
                raise self._wrong(row, error) from error
        if rows and not kept:
            raise SetpointError(
                f"{self.where}.untrained: drop leaves out all of the {rows:,} rows: nothing in "
                f"them is trained on with loss_on = {self.config.loss_on}.\n{VALID_ROW}"
            )

    def texts(self) -> Iterator[Document]:
        """What the messages say, which needs no tokenizer: for training one."""
        for row, filled in self._rows():
            try:
                found = read_row(row.values, filled, self.config.shifted_labels)
            except RowError as error:
                raise self._wrong(row, error) from error
            if isinstance(found, Conversation):
                yield Document(row.name, "\n".join(found.texts()).encode())

    def inputs(self) -> Iterator[str]:
        """See `inputs_of`."""
        return inputs_of(conversation_files(self.config, f"{self.where}.paths").checked())

    def _wrong(self, row: Row, error: RowError) -> SetpointError:
        return SetpointError(f"{self.where}.paths: {row.place}: {error}.\n{VALID_ROW}")

    def starts_with_messages(self) -> bool:
        """Whether the first row is a conversation, which needs a template; tokens need none.

        Raises:
            SetpointError: the files cannot be read.
        """
        for row, filled in self._rows():
            try:
                return isinstance(
                    read_row(row.values, filled, self.config.shifted_labels), Conversation
                )
            except RowError as error:
                raise self._wrong(row, error) from error
        return False

    def template(self, tokenizer: Tokenizer) -> ChatTemplate:
        """The chat template, for one tokenizer.

        Raises:
            SetpointError: there is none, or it writes tokens that the tokenizer does not have.
        """
        if not isinstance(getattr(tokenizer, "chat", None), ChatFacts):
            raise SetpointError(
                f"{self.where}: conversations need a tokenizer that knows control tokens, with "
                f"`chat` and `encode_pieces` as in setpoint.data.tokenizers.tokenizer, and "
                f"{type(tokenizer).__name__} has none.\nValid: --tokenizer huggingface, bytes."
            )
        facts = cast(ChatTokenizer, tokenizer).chat
        template = fitting_template(self.config.template, f"{self.where}.template", facts)
        return ChatTemplate(template.source, template.title, facts.variables, facts.controls)

    def _encoded(
        self, name: str, found: Conversation, template: ChatTemplate, tokenizer: ChatTokenizer
    ) -> Iterator[Document]:
        loss_on = self.config.loss_on
        wanted = found.answers[-1:] if loss_on == "last_answer" else found.answers
        rendered = template.render(found, () if loss_on == "all" else wanted)
        tokens, places = tokenizer.encode_pieces(rendered.pieces)
        whole = np.ones(len(tokens), np.bool_)
        trained = whole if loss_on == "all" else answer_mask(places, rendered.answers)
        ended = loss_on == "all" or wanted[-1:] == (len(found.messages) - 1,)
        if rendered.end is not None and ended:
            tokens = np.append(tokens, tokenizer.chat.tokens[rendered.end])
            trained = np.append(trained, trained.any())
        trained[:1] = False  # nothing is before it to predict it from
        if not trained.any():
            yield from self._untrained("no answer of the assistant in it has a token")
            return
        yield Document(name, rendered.text.encode(), tokens, trained)

    def _given(self, name: str, found: TokenizedRow) -> Iterator[Document]:
        trained = found.trained
        if trained is None:
            trained = np.ones(len(found.tokens), np.bool_)
        elif not trained.any():
            yield from self._untrained("all of its labels are -100")
            return
        trained[list(found.starts)] = False
        if not trained.any():
            yield from self._untrained("its first token is the only one")
            return
        yield from replace(found, trained=trained).documents(name)

    def _untrained(self, reason: str) -> Iterator[Document]:
        """What becomes of a row without a token to train on."""
        if self.config.untrained == "error":
            raise RowError(
                f"nothing in it is trained on: {reason}; {self.where}.untrained = drop leaves "
                "such rows out"
            )
        yield from ()

    def _rows(self) -> Iterator[tuple[Row, bool]]:
        """The rows of all files, and whether they are those of a table."""
        files = conversation_files(self.config, f"{self.where}.paths").checked()
        for name, file in files.items():
            kind = record_format(file)
            for row in read_rows(name, file, kind, where=self.where):
                yield row, kind in (PARQUET, ARROW)


def answer_mask(
    places: npt.NDArray[np.int64], answers: tuple[tuple[int, int], ...]
) -> npt.NDArray[np.bool_]:
    """(T,) which tokens hold part of an answer, be it one byte of its first character."""
    mask = np.zeros(len(places), np.bool_)
    first, last = places[:, 0], places[:, 1]
    for start, end in answers:
        empty = (first == last) & (start <= first) & (first < end)
        mask |= ((last > start) & (first < end) & (first < last)) | empty
    return mask


VALID_ROW = (
    'Valid: a row such as {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", '
    '"content": "..."}]}, or with the keys prompt and completion, instruction and output, or '
    "input_ids and labels."
)
