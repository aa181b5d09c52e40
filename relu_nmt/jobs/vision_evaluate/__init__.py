"""Accuracy of image classifiers, and classes of pictures."""
