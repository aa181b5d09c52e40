"""What is read of the files that steps leave."""

import pytest

from relu_nmt.evaluation import document_scores as docs
from relu_nmt.evaluation.bleu import MetricConfig
from relu_nmt.sweep.results import document_statistics

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def test_statistics_are_kept_beside_the_translation(tmp_path):
    references = [["a dog is here .", "it barks ."], ["a cat sleeps ."], ["nothing more ."]]
    system = [[""], ["a cat sleeps there ."], ["nothing more ."]]  # an empty one is a document
    path = tmp_path / "evaluate-8.txt"
    path.write_text("".join("<d>\n" + "".join(f"{x}\n" for x in lines) for lines in system))
    expected = docs.document_score(MetricConfig(), system, [references])
    found = document_statistics(path, references, SIGNATURE, "run 1")
    assert found.score() == pytest.approx(expected.value)
    path.unlink()
    again = document_statistics(path, references, SIGNATURE, "run 1")
    assert (again.counts == found.counts).all()
    path.write_text("".join("<d>\nx\n" for _ in references))
    assert document_statistics(path, references, SIGNATURE, "run 2").score() == 0


def test_the_signature_tells_how_words_are_counted(tmp_path):
    path = tmp_path / "evaluate-8.txt"
    path.write_text("<d>\nA Dog is here.\n")
    for signature, matching in ((SIGNATURE, 3), ("case:lc|tok:none", 4), ("case:lc|tok:13a", 5)):
        found = document_statistics(path, [["a dog is here."]], signature, "run")
        # Behind the two lengths.
        assert found.counts[0, 2] == matching
