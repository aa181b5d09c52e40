"""The JSON of requests and answers; FastAPI derives the OpenAPI description from it."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

LINE_CHARACTERS = 4000
"""Longest line: for a longer one without spaces subword-nmt would take seconds."""
MOST_LINES = 2000
TERM_CHARACTERS = 200
MOST_FORCED = 16
"""Most forced terms of a line."""
MOST_BANNED = 200


def _whole(value: object) -> object:
    """Return 3.0 as 3, which is the same number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


MaxDocTokens = Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(_whole)]
LineNumber = Annotated[int, Field(ge=0, le=MOST_LINES), BeforeValidator(_whole)]
Line = Annotated[str, Field(max_length=LINE_CHARACTERS)]
Lines = Annotated[list[Line], Field(min_length=1, max_length=MOST_LINES)]
Term = Annotated[str, Field(max_length=TERM_CHARACTERS)]
LineTerms = Annotated[list[Term], Field(max_length=MOST_FORCED)]


STRICT = ConfigDict(extra="forbid", strict=True)
"""In a request, unknown fields are errors, and no value is converted."""


class TranslationRequest(BaseModel):
    """A document to translate."""

    model_config = STRICT
    lines: Lines = Field(description="Its sentences in order; a blank one gives an empty one.")
    max_doc_tokens: MaxDocTokens | None = Field(
        None,
        description="Translate consecutive lines together, up to this many source tokens; 1: each "
        "on its own. By default as the model was trained.",
    )
    prefixes: Lines | None = Field(
        None,
        description="Beginning of the translation of each line, in whole words; an empty text for "
        "none. As many as lines.",
    )
    forced: Annotated[list[LineTerms], Field(max_length=MOST_LINES)] | None = Field(
        None,
        description="Terms that the translation of each line must contain, at places that do not "
        "overlap; an empty list for none. As many lists as lines.",
    )
    ordered: bool = Field(True, description="The forced terms of a line come in this order.")
    banned: list[Term] = Field(
        [],
        max_length=MOST_BANNED,
        description="Terms that no translation may contain outside forced text.",
    )


class Group(BaseModel):
    """Lines that were translated at once."""

    first: int = Field(description="Number of the first line, from 0.")
    count: int = Field(description="Number of lines.")
    lines: list[str] = Field(
        description="Their translations: one each, or a single one for all of them if the model "
        "does not tell sentences apart."
    )
    score: float = Field(description="Log-probability over length penalty, nats.")
    reached_limit: bool = Field(description="The translation may be cut off.")


class TranslationAnswer(BaseModel):
    """The translation of a document."""

    lines: list[str]
    groups: list[Group]
    source_tokens: int
    target_tokens: int


class AttentionRequest(BaseModel):
    """Lines that are translated at once, and a translation of them."""

    model_config = STRICT
    lines: Lines
    translation: Lines = Field(description="Line by line, or one line for all.")
    slot: Literal["cross", "encoder", "decoder"] = "cross"
    line: LineNumber | None = Field(
        None, description="Only the rows of the tokens of this line, from 0."
    )


class Token(BaseModel):
    """A token and its place in the text."""

    text: str
    line: int | None = Field(description="Number of its line, from 0; null for the end symbol.")
    begin: int = Field(description="Its first character in this line.")
    end: int = Field(description="The character behind its last.")


class AttentionAnswer(BaseModel):
    """The weights of every layer and head, as the mechanism defines them."""

    queries: list[Token] = Field(
        description="Tokens of the rows; in the decoder, the predicted tokens."
    )
    keys: list[Token] = Field(description="Tokens of the columns.")
    weights: list[list[list[list[float]]]] = Field(description="[layer][head][query][key]")


class SlotDescription(BaseModel):
    """The attention of a slot."""

    mechanism: str
    layers: int
    heads: int
    has_weights: bool


class Limits(BaseModel):
    """The largest request."""

    bytes: int
    tokens: int
    seconds: float
    lines: int = MOST_LINES
    line_characters: int = LINE_CHARACTERS
    line_terms: int = MOST_FORCED
    banned_terms: int = MOST_BANNED
    term_characters: int = TERM_CHARACTERS


class ModelDescription(BaseModel):
    """Description of the model and the server's limits."""

    source_lang: str
    target_lang: str
    parameters: int
    max_doc_tokens: int = Field(description="Default of tokens to translate at once.")
    keeps_sentences: bool = Field(description="Each line has its own translation in any group.")
    beam: int
    attention: dict[str, SlotDescription]
    limits: Limits


class Health(BaseModel):
    """State of the server."""

    status: Literal["ok", "stopping"]
    waiting: int = Field(description="Requests that are not answered yet.")


class Problem(BaseModel):
    """Error message of a request without answer."""

    error: str
