"""What a translator gives for documents: their lines, and how well they could be divided."""

from relu_nmt.decoding.document_search import DocumentTranslations


class TranslatedDocuments(list[list[str]]):
    """The lines of each translated document, with the report that the command prints.

    It is a list of documents like any other; a slice of it is a plain list, without the report.

    Args:
        found: the translations, of which mismatched groups were translated again in parts.
        num_documents: how many documents they are of.

    Attributes:
        num_groups: groups of lines that were to be translated at once.
        num_mismatched: of these, how many translations had another number of sentences than lines.
        num_repeated: groups, whole or parts, that were translated again in halves.
        num_undivided: groups that became one line each, as the model has no separators.
        num_at_limit: translations that reached the longest output and may be cut off.
    """

    def __init__(self, found: DocumentTranslations, num_documents: int) -> None:
        documents = found.lines(num_documents)
        super().__init__([line.text for line in lines] for lines in documents)
        self.num_groups = found.num_planned
        self.num_mismatched = found.num_mismatched
        self.num_repeated = found.num_repeated
        self.num_undivided = found.num_undivided
        self.num_at_limit = found.num_at_limit

    @property
    def mismatch_rate(self) -> float | None:
        """Share of the groups that were mismatched, 0 to 1; None: that cannot be told."""
        return None if self.num_undivided else self.num_mismatched / max(1, self.num_groups)
