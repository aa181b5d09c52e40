"""The JSON of requests and answers, from which FastAPI derives the OpenAPI description."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

REASONS = {
    400: "The request is of LibreTranslate's interface, and not as this describes.",
    403: "A page of another origin asks, or the server does not know the key.",
    404: "No model of this server has these languages.",
    413: "Too many bytes, tokens or weights.",
    415: "The Content-Type is not application/json, or the body is compressed.",
    422: "The request does not fit the description, or the model cannot do it.",
    429: "The queue is full; Retry-After says when to come back.",
    503: "The server is stopping, or memory or threads do not suffice for this text.",
    504: "No answer within the time limit.",
}
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


class ModelChoice(BaseModel):
    """The languages that choose a model of the server, and the key to use it."""

    model_config = STRICT
    source: str | None = Field(
        None, description="Source language, by default that of the first model that fits."
    )
    target: str | None = Field(
        None, description="Target language, by default that of the first model that fits."
    )
    api_key: str | None = Field(None, description="One of the server's keys, if it has any.")


class TranslationBody(ModelChoice):
    """A document to translate."""

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
        description="Terms that no translation may contain outside forced text, in any case.",
    )
    match_case: bool = Field(False, description="Banned terms may come in other capitals.")
    inside_words: bool = Field(
        False,
        description="Forced terms may be parts of words, and banned terms are banned there too.",
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


class AttentionBody(ModelChoice):
    """Lines that are translated at once, and a translation of them."""

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
    file_bytes: int
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


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text} for status, text in REASONS.items()
}
