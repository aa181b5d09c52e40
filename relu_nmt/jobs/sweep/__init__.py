"""Trainings of many attentions, lengths and seeds."""
