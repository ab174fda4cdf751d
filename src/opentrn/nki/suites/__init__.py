"""What the public kernel suites expect around them, so that their tests run unmodified."""
