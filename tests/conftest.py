"""What holds for all tests."""

from hypothesis import settings

# Seeds are fixed, and a busy machine must not fail a test.
settings.register_profile("relu_nmt", deadline=None, derandomize=True)
settings.load_profile("relu_nmt")
