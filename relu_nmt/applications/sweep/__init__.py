"""Trains and evaluates models over document lengths, attentions and seeds, and reports on them."""
