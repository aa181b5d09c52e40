"""Train and evaluate models over document lengths, attentions and seeds, and report on them."""
