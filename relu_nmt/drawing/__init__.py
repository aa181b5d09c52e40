"""Plots, maps of attention weights, and pages of HTML with figures and numbers."""
